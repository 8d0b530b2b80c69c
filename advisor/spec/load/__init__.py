"""The border: YAML, JSON, Hugging Face and Megatron arguments become frozen values here, with all problems at once."""
