"""Conversion of GGUF files and Hugging Face directories into model directories."""

from onebit.convert.config_only import write_config_only
from onebit.convert.gguf import CONVERTER, WRITABLE, check_gguf, convert_gguf
from onebit.convert.report import ConvertReport, TensorReport
from onebit.convert.safetensors import convert_safetensors
from onebit.convert.verify import TensorCheck, verify_gguf

__all__ = [
    "CONVERTER",
    "WRITABLE",
    "ConvertReport",
    "TensorCheck",
    "TensorReport",
    "check_gguf",
    "convert_gguf",
    "convert_safetensors",
    "verify_gguf",
    "write_config_only",
]
