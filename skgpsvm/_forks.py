"""Keep forked children from waiting for threads that the fork did not copy."""

import os

from threadpoolctl import ThreadpoolController

_SOFT = 1  # omp_pause_soft of OpenMP 5.0: settings stay


def release_thread_pools():
    """End the OpenMP threads of the calling thread; its next parallel loop starts new ones.

    A forked child would wait for them forever, see "Forks" in doc/development/architecture.rst.
    OpenMP libraries other than GNU's survive a fork without help.

    Source: OpenMP 5.0, section 3.2.43, ``omp_pause_resource_all``; in GNU's library since GCC 9.
    """
    for library in ThreadpoolController().select(prefix="libgomp").lib_controllers:
        library.dynlib.omp_pause_resource_all(_SOFT)


if hasattr(os, "register_at_fork"):  # absent where there is no fork
    os.register_at_fork(before=release_thread_pools)
