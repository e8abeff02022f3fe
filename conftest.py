"""Tests leave the tree as they found it: kernels are quiet, and figures go to a folder that vanishes.

Set when pytest loads this file, so that the kernels which nbval starts inherit it too.
"""

import atexit
import os
import shutil
import tempfile

os.environ["BRRCRL_QUIET"] = "1"
os.environ["BRRCRL_FIGURES"] = tempfile.mkdtemp(prefix="brrcrl-figures-")
atexit.register(shutil.rmtree, os.environ["BRRCRL_FIGURES"], ignore_errors=True)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread costs more than it gives
