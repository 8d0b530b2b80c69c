"""From a chosen layout to every knob around it: what to set, to which value, and why."""
