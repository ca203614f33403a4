// The nodes of a simulated fleet, the lives of their processes, and calls between them.

#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/requester.h"
#include "proto/ids.h"
#include "server/directory/directory_watcher.h"
#include "server/directory/durable_directory.h"
#include "server/directory/registration.h"
#include "server/holder/holder.h"
#include "tests/sim/network.h"
#include "tests/sim/scheduler.h"
#include "tests/sim/sim_disk.h"

namespace ckv {
class EtcdDirectory;
}  // namespace ckv

namespace ckv::sim {

// A process answers so before its holder or directory has started, and after it has ended.
inline absl::Status Starting() { return absl::UnavailableError("it is starting or ending"); }

// One process from its start to its end. Never destroyed: threads of a killed one still use it.
struct Life {
  Life(std::string name, uint32_t node);
  Process process;
  NodeClock clock{&process};
  std::unique_ptr<Fabric> fabric;

  // The part that it serves. Null while it starts and once it ends. Owned by its first thread.
  DirectoryState* directory = nullptr;
  EtcdDirectory* etcd = nullptr;  // of a directory that is one of several
  Holder* holder = nullptr;
  Requester* requester = nullptr;

  uint32_t called = 0;  // the directory that answered it last: an index of Directories

  // The watches that a directory serves, by their numbers (watch_calls.cc). They end with it.
  struct Watch {
    std::unique_ptr<DirectoryWatcher> watcher;
    int64_t called_at = 0;
  };
  std::map<uint64_t, Watch> watches;

  bool ending = false;    // it is to end in order
  bool ended = false;     // its first thread has returned
  bool has_power = true;  // if not, its peers hear nothing of its death

  // Until when a holder reports that it is past its elbow, because of these chunks.
  int64_t past_elbow_until = 0;
  std::vector<ChunkId> hot;

  // The lease that a holder was granted, for the checks. Written by its registrar's stub.
  Epoch epoch, epoch_before;
  int64_t epoch_changed_at = 0;
  int64_t may_answer_until = 0;  // half a lease after the request for it was sent

  // Calls that wait for a thread, and its threads that wait for a call.
  std::deque<absl::AnyInvocable<void()>> calls;
  uint32_t idle_count = 0;
  uint32_t call_count = 0;  // calls in progress
};

// The life of the calling thread's process. The thread must belong to one.
Life& CurrentLife();

struct Node {
  uint32_t number = 0;
  std::string name;
  std::unique_ptr<SimDisk> disk;
  Life* life = nullptr;  // the last one; null before the first
  uint32_t life_count = 0;

  bool up() const { return life != nullptr && !life->process.dead; }
};

// A node's control address, and the node of one: null if there is none.
std::string AddressOf(const Node& node);
Node* NodeAt(const std::vector<std::unique_ptr<Node>>& nodes, std::string_view address);

// Runs `call` on a thread of the process.
void Serve(Life* life, absl::AnyInvocable<void()> call);

// Calls that have no deadline end after this.
inline constexpr int64_t kCallMax = 30 * kSecond;

// Calls `handler` on a thread of node `to`, as gRPC does: the call or its answer may be lost, and
// is then never answered; a node without a process refuses it; one whose process dies resets it.
template <typename R>
R CallNode(Network& network, const Process* from, Node& to, int64_t until,
           std::function<R(Life&)> handler) {
  struct State {
    std::optional<R> result;
    Life* life = nullptr;
  };
  const auto state = std::make_shared<State>();
  const uint32_t from_node = from->node;
  const Fate there = network.Send(from_node, to.number, /*is_frame=*/false);
  const auto arrive = [&network, from_node, &to, state, handler = std::move(handler)] {
    Life* const life = to.life;
    if (life == nullptr || life->process.dead) {
      if (life == nullptr || life->has_power) {
        state->result.emplace(absl::UnavailableError(to.name + ": connection refused"));
      }
      return;
    }
    state->life = life;
    Serve(life, [&network, from_node, life, state, handler] {
      R result = handler(*life);
      const Fate back = network.Send(life->process.node, from_node, /*is_frame=*/false);
      if (back.lost) return;
      Sim().At(back.arrives, [state, result = std::move(result)]() mutable {
        if (!state->result) state->result.emplace(std::move(result));
      });
    });
  };
  if (!there.lost) Sim().At(there.arrives, arrive);
  Sim().Block(std::min(until, Sim().now() + kCallMax), [&] {
    return state->result.has_value() ||
           (state->life != nullptr && state->life->process.dead && state->life->has_power);
  });
  if (state->result) return *std::move(state->result);
  if (state->life != nullptr && state->life->process.dead && state->life->has_power) {
    return R(absl::UnavailableError(to.name + ": connection reset"));
  }
  return R(absl::DeadlineExceededError(to.name + " does not answer"));
}

}  // namespace ckv::sim
