"""What ``import covey`` gives, and what it waits with."""

import subprocess
import sys

import pytest

import covey

LAZY = ("SSMCKMeans", "ssmc_init")


@pytest.mark.parametrize("name", covey.__all__)
def test_every_public_name_is_there(name):
    assert name in dir(covey)
    assert getattr(covey, name) is not None


def test_public_names_are_in_order():
    assert covey.__all__ == sorted(covey.__all__)


def test_the_estimators_are_those_of_their_package():
    from covey import SSMCKMeans, estimators, ssmc_init

    assert SSMCKMeans is estimators.SSMCKMeans
    assert ssmc_init is estimators.ssmc_init


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'covey' has no attribute 'kmean'"):
        covey.kmean  # noqa: B018
    assert not hasattr(covey, "nothing")


@pytest.mark.parametrize("missing", ["sklearn", "scipy.sparse"])
def test_without_scikit_learn_only_the_estimators_are_missing(missing):
    """In a process of its own, where nothing is imported yet."""
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "import covey\n"
        "covey.systematic\n"
        f"for name in {LAZY}:\n"
        "    try:\n        getattr(covey, name)\n"
        "    except ImportError as error:\n        print(error)\n"
    )
    if missing == "scipy.sparse":  # JAX brings SciPy in by itself
        code = code.replace("import covey\n", "", 1).replace("import sys\n", "import sys, covey\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = (f"covey.{name} needs scikit-learn: pip install 'covey[cluster]'" for name in LAZY)
    assert done.stdout.splitlines() == list(expected)
