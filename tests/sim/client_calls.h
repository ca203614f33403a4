// Calls of the product's gRPC clients, in place of gRPC's connections: of the operator's Publisher
// (publish_calls.cc), and the stream of a requester's WatchStub (watch_calls.cc).

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "client/grpc/directory_caller.h"
#include "proto/corpus.h"
#include "proto/ids.h"
#include "tests/sim/directories.h"
#include "tests/sim/node.h"

namespace ckv::sim {

// Who publishes, and whom that calls. One per run.
struct PublishCalls {
  Life* operator_life = nullptr;
  const Directories* directories = nullptr;
  std::vector<std::unique_ptr<Node>>* nodes = nullptr;
  // A holder acknowledged a put.
  std::function<void(const Node& holder, const ChunkId& id)> on_put;
  // A directory is to publish this. Called on its process.
  std::function<void(const Corpus& corpus)> on_publish;
};

PublishCalls& ThePublishCalls();

// The directory of this index, as the calling process watches it. A stream is calls of the watcher,
// one after another, each of which waits there for events. One that is not answered in time ends
// the stream: so do keep-alives of gRPC.
std::shared_ptr<DirectoryCaller::Stub> WatchOf(const Directories* directories, size_t index);

// Ends the watches that a directory serves. Call it before the state of `life` is destroyed, when
// no call is in progress.
void EndWatches(Life& life);

}  // namespace ckv::sim
