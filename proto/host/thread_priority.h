// Threads whose work may wait.

#pragma once

namespace ckv {

// From now on the calling thread runs with nice 10: of a processor that others want, it gets a
// tenth. For work that must not delay queries, as copies of chunks. Nothing raises the priority
// again, so the thread must have no other work. If the system refuses, nothing changes.
void LowerThreadPriority();

}  // namespace ckv
