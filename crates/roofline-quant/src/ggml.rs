//! ggml block types: the numbers inside a GGUF file.
