"""What the heavy oracles share: the checks of the folder above, and logits by transformers."""

import logging
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("LLM_COMPRESSOR_LOG_DISABLED", "true")
os.environ.setdefault("TQDM_DISABLE", "1")
# Some virtual machines announce matrix instructions that they then refuse.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
logging.disable(logging.WARNING)
try:
    # compressed-tensors talks through this where it is there.
    import loguru

    loguru.logger.remove()
except ImportError:
    pass


def token_ids():
    """Two sequences of 48 tokens, none of them special."""
    return torch.randint(5, 512, (2, 48), generator=torch.Generator().manual_seed(123))


def logits_of(model):
    with torch.no_grad():
        return model.eval()(token_ids()).logits.float()


def logits(folder):
    """What transformers computes with a checkpoint, in the type its configuration names."""
    return logits_of(AutoModelForCausalLM.from_pretrained(folder, dtype="auto", device_map="cpu"))


def relative(a, b):
    """Root mean square of `a - b` over that of `b`."""
    return ((a - b).pow(2).mean() / b.pow(2).mean()).sqrt().item()
