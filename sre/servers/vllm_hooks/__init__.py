"""
Modules that run inside a real vLLM. vLLM gets this folder, and nothing else of ours, on its PYTHONPATH: so they import
only the standard library, and none of our dependencies can stand before vLLM's own.
"""
