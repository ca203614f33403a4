// The stream of a WatchStub, in place of gRPC's.

#pragma once

#include <memory>

#include "client/grpc/directory_caller.h"
#include "tests/sim/directories.h"
#include "tests/sim/node.h"

namespace ckv::sim {

// The directory of this index, as the calling process watches it. A stream is calls of the watcher,
// one after another, each of which waits there for events. One that is not answered in time ends
// the stream: so do keep-alives of gRPC.
std::shared_ptr<DirectoryCaller::Stub> WatchOf(const Directories* directories, size_t index);

// Ends what directories serve. Call it before the state of `life` is destroyed, when no call is in
// progress.
void EndWatches(Life& life);

}  // namespace ckv::sim
