// The directories of a simulated fleet, and calls to them.

#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/status.h"
#include "server/directory/directory_state.h"
#include "server/directory/etcd/etcd_directory.h"
#include "tests/sim/network.h"
#include "tests/sim/node.h"

namespace ckv::sim {

// One directory with a folder, or two that share an etcd.
struct Directories {
  Network* network = nullptr;
  std::vector<Node*> nodes;
};

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Whether a call needs the directory that leads, or may read at one that follows.
enum class CallTo : uint8_t { kLeader, kAny };

template <typename R>
R CallOneDirectory(const Directories& directories, Life& from, size_t index, int64_t until,
                   CallTo to, std::function<R(DirectoryState&)> handler) {
  until = std::min(until, Sim().now() + kCallMax);
  return CallNode<R>(
      *directories.network, &from.process, *directories.nodes[index], until,
      [to, until, handler = std::move(handler)](Life& life) -> R {
        if (life.directory == nullptr) return R(absl::UnavailableError("it is starting or ending"));
        if (to == CallTo::kAny && life.etcd != nullptr) {
          CKV_RETURN_IF_ERROR(life.etcd->CatchUp({until + life.process.clock_ahead_ns}));
        }
        return handler(*life.directory);
      });
}

// Calls the directories in turn until one decides, as client/grpc/directory_caller.h does.
template <typename R>
R CallDirectory(const Directories& directories, Life& from, int64_t until, CallTo to,
                const std::function<R(DirectoryState&)>& handler) {
  until = std::min(until, Sim().now() + kCallMax);
  const size_t count = directories.nodes.size();
  while (true) {
    const size_t first = from.called;
    for (size_t i = 0; i < count; ++i) {
      const size_t index = (first + i) % count;
      const int64_t end = count == 1 ? until : std::min(until, Sim().now() + kSecond);
      R result = CallOneDirectory<R>(directories, from, index, end, to, handler);
      const absl::Status status = StatusOf(result);
      const bool decides = !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status);
      if (decides) from.called = static_cast<uint32_t>(index);
      if (decides || count == 1 || Sim().now() >= until) return result;
    }
    Sim().SleepUntil(std::min(until, Sim().now() + 50 * kMs));
  }
}

}  // namespace ckv::sim
