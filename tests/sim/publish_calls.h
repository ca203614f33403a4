// The calls of the operator's Publisher, in place of gRPC's connections.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "proto/corpus.h"
#include "proto/ids.h"
#include "tests/sim/directories.h"
#include "tests/sim/node.h"

namespace ckv::sim {

// Who calls, and whom. One per run.
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

}  // namespace ckv::sim
