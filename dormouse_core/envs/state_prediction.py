"""Next-state prediction: one answer, and the environment then shows what really would have happened.

The truth is computed here from the start state and its actions, by the same rules the multi-step environments run on; the
verifier compares the answer with its own record of it.
"""

from dormouse_core.envs.answer import Answer
from dormouse_core.tasks.files import Files
from dormouse_core.tasks.register import LETTERS, MACHINES, apply, show


class StatePrediction(Answer):
    """State as `Answer`. The observation is empty before the answer and the true next state after it."""

    def observe(self) -> bytes:
        return b"" if self.submitted is None else self._truth().encode()

    def _truth(self) -> str:
        start = self.task.start
        if start["kind"] == "files":
            state = Files.read(start["listing"])
            for command in start["actions"]:
                state, _ = state.apply(command)
            return state.listing()
        value = int(start["value"])
        for letter in start["actions"]:
            after = apply(MACHINES["walk"][LETTERS.index(letter)], value)
            value = value if after is None else after
        return show(value)
