"""Calls that are made once and repeated, for decode loops."""

from __future__ import annotations

from ctypes import addressof
from typing import Any, Optional

from ._handles import Owner
from ._memory import BF16, count, memory_of, plain
from .attend import Call, Context, Segment, Ticket, Where, submit
from .corpus import Corpus, Part
from .errors import FailedPrecondition, InvalidArgument
from .partial import Answer


class PreparedCall:
    """A call over the same contexts, queries and answer, repeated for each layer and step.

    From Requester.prepare. Its arguments are converted and checked once, so a repetition costs little
    more than the call in C. Change the query rows in place between two repetitions:

        call = requester.prepare(q, context, out=out)
        for layer in range(model.layers):
            q[:] = queries(layer)
            o, m, l = call.attend(layer)

    Every repetition writes to the same answer, whose report is that of the last one. An engine that
    submits a call while another is in flight prepares two. Only one thread at a time may use it.
    """

    __slots__ = ("answer", "_owner", "_call", "_contexts", "_struct_at", "_report_at", "_ticket")

    answer: Answer

    def __init__(self, owner: Owner, call: Call, contexts: tuple[Context, ...]) -> None:
        """Only for Requester.prepare."""
        self.answer = call.answer
        self._owner, self._call, self._contexts = owner, call, contexts
        self._struct_at, self._report_at = addressof(call.struct), addressof(call.report)
        self._ticket: Optional[Ticket] = None

    def attend(self, layer: int) -> Answer:
        """Attends one layer with the query rows as they are now. Errors are those of Requester.attend.

        FailedPrecondition  also: a context is closed, or a ticket of this call is in flight
        """
        self._ready(layer)
        library = self._owner.library
        status = library.attend(self._owner.live(), self._struct_at, self._report_at)
        if status:
            library.fail(status)
        return self.answer

    def submit(self, layer: int) -> Ticket:
        """Posts one layer, as Requester.submit does. Wait for its ticket before the next repetition.

        FailedPrecondition  as attend
        """
        self._ready(layer)
        self._ticket = submit(self._owner, self._call)
        return self._ticket

    def _ready(self, layer: int) -> None:
        for context in self._contexts:
            if not context._handle:
                raise FailedPrecondition("a context of this call is closed")
        if self._ticket is not None:
            if self._ticket._handle:
                raise FailedPrecondition("a ticket of this call is in flight: wait for it, or close it")
            self._ticket = None
        self._call.struct.layer = count(layer, "layer")


def prepare(owner: Owner, call: Call, q: Any, where: Where) -> PreparedCall:
    """See Requester.prepare. `call` was made of `q` and `where`."""
    if memory_of(plain(q, "q"), "q", BF16, device=True).address != call.struct.q:
        raise InvalidArgument("q would have to be copied, and a repetition would not see its changes: its "
                              "rows must have one stride")
    ones = (where,) if isinstance(where, (Context, Segment, Part, Corpus)) else where
    contexts = [one.context if isinstance(one, Segment) else one for one in ones]
    if not all(isinstance(context, Context) for context in contexts):
        raise InvalidArgument("a call over a Part or Corpus cannot be prepared: open a context of it")
    return PreparedCall(owner, call, tuple(contexts))
