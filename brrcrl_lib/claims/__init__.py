"""The claims of the paper that experiments can judge: one module per claim, from recorded rows to verdict and figure."""
