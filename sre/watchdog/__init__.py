"""
The revert guard of fault injection: a process of its own that undoes a fault when its injector cannot.

Standard library only. It reads one journal, holds a closed set of revert verbs, and needs no settings and no network,
so that it still works when everything else does not.
"""
