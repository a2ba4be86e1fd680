"""Quantizers written from the formats' descriptions with numpy and ml_dtypes alone: slow, short and independent of the program."""
