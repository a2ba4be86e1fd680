//! GGUF, version 3: the container that llama.cpp loads.
