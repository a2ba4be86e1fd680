"""Models for the analyzer: those of the registry by name, and your own by their dimensions."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ._result import Sheet, ask

__all__ = [
    "CustomModelConfig",
    "Llama2_13BConfig",
    "Llama2_70BConfig",
    "Llama2_7BConfig",
    "Llama3_70BConfig",
    "Llama3_8BConfig",
    "LlamaConfig",
    "MistralConfig",
    "ModelConfig",
    "get_model_config",
]


class ModelConfig(Sheet):
    """A model.

    ``ModelConfig(key="qwen3-8b")`` is one of the registry; with dimensions it is one of your own, of the Llama kind unless
    ``model_type`` says otherwise. What follows from the dimensions, ``params_billions`` among it, is an attribute.
    """

    registered: Optional[str] = None

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        hidden_size: Optional[int] = None,
        num_layers: Optional[int] = None,
        num_heads: Optional[int] = None,
        num_kv_heads: Optional[int] = None,
        intermediate_size: Optional[int] = None,
        vocab_size: Optional[int] = None,
        head_dim: Optional[int] = None,
        tie_word_embeddings: bool = False,
        model_type: str = "llama",
        key: Optional[str] = None,
        config: Optional[Dict[str, Any]] = None,
    ) -> None:
        dimensions = {
            "hidden_size": hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_heads if num_kv_heads is None else num_kv_heads,
            "intermediate_size": intermediate_size,
            "vocab_size": vocab_size,
            "head_dim": head_dim,
        }
        known = {field: value for field, value in dimensions.items() if value is not None}
        model: Any = config
        if model is None and known:
            model = {"model_type": model_type, "tie_word_embeddings": tie_word_embeddings, **known}
        place: Dict[str, Any] = {"model": model or key or self.registered or name}
        if model is not None:
            place["model_name"] = name or "custom model"
        super().__init__(place)

    @classmethod
    def from_transformers(cls, model: Any, name: Optional[str] = None) -> "ModelConfig":
        """The dimensions of a live ``transformers`` model, or of its configuration."""
        config = getattr(model, "config", model)
        fields = {key: value for key, value in config.to_dict().items() if _is_plain(value)}
        label = name or getattr(config, "_name_or_path", "") or type(config).__name__.replace("Config", "")
        return ModelConfig(label, config=fields)

    def _facts(self) -> Dict[str, Any]:
        # A device is beside the point, and naming one keeps this machine's from being looked for.
        facts: Dict[str, Any] = ask("sheet", {"on": "t4", **self.place})["model"]
        return facts


def _is_plain(value: Any) -> bool:
    """Whether a file of JSON could hold it: a configuration may hold types, too."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, int, float, bool))


class MistralConfig(ModelConfig):
    """Mistral 7B."""

    registered = "mistral-7b"


class LlamaConfig(ModelConfig):
    """Llama 2 7B, or another of the family: ``LlamaConfig("13b")``, ``LlamaConfig("3-8b")``."""

    def __init__(self, size: str = "7b") -> None:
        text = size.strip().lower().removeprefix("llama-")
        key = "llama-" + (text if "-" in text else "2-" + text)
        super().__init__(key=key)


class Llama2_7BConfig(ModelConfig):
    """Llama 2 7B."""

    registered = "llama-2-7b"


class Llama2_13BConfig(ModelConfig):
    """Llama 2 13B."""

    registered = "llama-2-13b"


class Llama2_70BConfig(ModelConfig):
    """Llama 2 70B."""

    registered = "llama-2-70b"


class Llama3_8BConfig(ModelConfig):
    """Llama 3 8B."""

    registered = "llama-3-8b"


class Llama3_70BConfig(ModelConfig):
    """Llama 3 70B."""

    registered = "llama-3-70b"


class CustomModelConfig(ModelConfig):
    """A model of your own: a name and its dimensions."""


def get_model_config(name: str) -> ModelConfig:
    """The model of the registry that is called so; an unknown name is an error with the nearest one."""
    config = ModelConfig(key=name)
    config.to_dict()
    return config
