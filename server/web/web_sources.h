// The parts of a process that its status pages show.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "proto/health/findings.h"
#include "server/directory/directory_state.h"
#include "server/directory/etcd/etcd_directory.h"
#include "server/directory/log/change_log.h"
#include "server/directory/registration.h"
#include "server/holder/holder.h"
#include "server/session/load_samples.h"
#include "server/upkeep/copy_maker.h"
#include "server/upkeep/placement_keeper.h"
#include "server/upkeep/replica_keeper.h"

namespace ckv {

// The parts of this process; a missing part is null. All must outlive the server that shows them.
struct WebSources {
  Clock* clock = Clock::Real();
  std::string name;                // the name of this process
  std::vector<std::string> roles;  // directory, holder, requester
  Instant started{};
  std::string version;
  std::string commit;
  std::string kernel;  // the kernel target
  DirectoryState* directory = nullptr;
  const ChangeLog* directory_log = nullptr;  // null if the directory keeps its state in memory
  const EtcdDirectory* etcd = nullptr;       // null unless the directory is one of several
  Holder* holder = nullptr;
  const PlacementKeeper* placement = nullptr;
  const CopyMaker* copies = nullptr;
  const Requester* requester = nullptr;
  const ReplicaKeeper* replicas = nullptr;
  const SpanSink* spans = nullptr;  // null if no spans are written
  // Counters of the requester's gRPC service. If empty, there is no service.
  std::function<uint64_t()> attend_count;
  std::function<uint64_t()> attend_error_count;
  std::function<bool()> directory_connected;
  std::vector<const Registration*> registrations;
  // Findings of this process and, on a directory, of its fleet. Returns immediately. May be empty.
  std::function<std::shared_ptr<const std::vector<Finding>>()> findings;
  // The load of the holder as of the last window. Returns immediately. May be empty.
  std::function<HolderLoad()> holder_load;
};

}  // namespace ckv
