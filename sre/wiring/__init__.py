"""The one place where adapters and servers meet control: one module per program that we run."""
