"""The codec for label maps: a causal Discrete Denoising Flow in integer arithmetic, without torch."""
