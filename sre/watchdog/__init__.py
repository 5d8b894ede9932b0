"""The process that reverts a fault when its injector is gone. Standard library only."""
