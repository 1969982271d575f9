"""Processes that need no imports of their own."""

import os
import traceback
import warnings


def forked(function, *arguments):
    """Runs a function in a process of its own; gives its exit code, negative for a signal.

    In it no threads of TensorFlow are left: the function computes nothing by TensorFlow if this process has done so.
    """
    with warnings.catch_warnings():
        # Python from 3.12 on and JAX, if another test has imported it, warn of forks beside threads.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            function(*arguments)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
