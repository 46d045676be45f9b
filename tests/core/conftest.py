"""What tests of the native forms share."""

from collections.abc import Iterator

import pytest

from dormouse_core.kernels import dispatch
from dormouse_core.kernels.native.build import Unavailable, library
from dormouse_core.policy import native, native_window
from dormouse_core.rollouts import native_draw


@pytest.fixture
def unproven() -> Iterator[None]:
    """Nothing counted, no native form held to torch yet; and so again afterwards."""

    def forget() -> None:
        for form in (native, native_window, native_draw):
            form.HELD.forget()
        dispatch.forget_counts()

    forget()
    yield
    forget()


@pytest.fixture
def compiler() -> None:
    """Skips, saying why, where native code cannot be compiled."""
    try:
        library("draw")
    except Unavailable as error:
        pytest.skip(f"native code was not tested: {error}")
