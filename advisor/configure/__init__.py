"""From a chosen layout to every setting of the framework, with what was asked, what takes effect, and why."""
