#include "tests/sim/client_calls.h"

#include <deque>
#include <utility>
#include <vector>

#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "tests/sim/grpc_stubs.h"

namespace ckv::sim {
namespace {

using Events = absl::StatusOr<std::vector<v1::WatchEvent>>;

// How long a call waits for an event, and how long its answer may take. A watcher that is not
// called for longer has lost its peer.
constexpr int64_t kSlice = 300 * kMs, kAnswerMax = 2 * kSecond, kForgetAfter = 10 * kSecond;
constexpr size_t kEventsPerCallMax = 16;

uint64_t last_watch = 0;

// As EventToProto of server/services/directory_service.cc; WatchStub reads names alone.
v1::WatchEvent ToMessage(const DirectoryEvent& event) {
  v1::WatchEvent message;
  using Kind = DirectoryEvent::Kind;
  switch (event.kind) {
    case Kind::kMemberUp:
      *message.mutable_member_up() = ToProto(event.member);
      break;
    case Kind::kMemberGone:
      *message.mutable_member_gone() = ToProto(event.member);
      break;
    case Kind::kCorpusPublished:
      message.mutable_corpus_published()->set_name(event.corpus->name);
      break;
    case Kind::kCorpusDropped:
      message.mutable_corpus_dropped()->set_name(event.corpus->name);
      break;
    case Kind::kReplicasChanged:
      message.mutable_replicas_changed()->set_name(event.corpus->name);
      break;
    case Kind::kSynced:
      message.set_synced(true);
      break;
  }
  return message;
}

// The events of a watch, on the directory: begins it if `is_first`.
Events NextEvents(Life& life, uint64_t number, bool is_first, bool all_tenants) {
  if (life.directory == nullptr) return absl::UnavailableError("it is starting or ending");
  std::erase_if(life.watches,
                [](const auto& one) { return Sim().now() - one.second.called_at > kForgetAfter; });
  if (is_first) {
    CKV_ASSIGN_OR_RETURN(auto watcher, life.directory->Watch(/*tenant=*/"", all_tenants));
    life.watches[number].watcher = std::move(watcher);
  }
  const auto watch = life.watches.find(number);
  if (watch == life.watches.end()) return absl::UnavailableError("the directory has restarted");
  watch->second.called_at = Sim().now();
  // Whatever forgets watches meanwhile, this one was called just now.
  DirectoryWatcher& watcher = *watch->second.watcher;
  std::vector<v1::WatchEvent> events;
  Instant until = life.clock.Now() + Duration(kSlice);
  while (events.size() < kEventsPerCallMax) {
    CKV_ASSIGN_OR_RETURN(const std::optional<DirectoryEvent> event, watcher.Next(until));
    if (!event) break;
    events.push_back(ToMessage(*event));
    until = life.clock.Now();
  }
  return events;
}

class WatchReader final : public grpc::ClientReaderInterface<v1::WatchEvent> {
 public:
  WatchReader(const Directories* directories, size_t index, bool all_tenants)
      : directories_(*directories),
        index_(index),
        all_tenants_(all_tenants),
        life_(CurrentLife()),
        number_(++last_watch) {}

  bool Read(v1::WatchEvent* event) override {
    while (events_.empty()) {
      if (life_.ending) return false;
      Node& node = *directories_.nodes[index_];
      Events next = CallNode<Events>(*directories_.network, &life_.process, node,
                                     Sim().now() + kSlice + kAnswerMax,
                                     [number = number_, is_first = !std::exchange(has_begun_, true),
                                      all_tenants = all_tenants_](Life& life) {
                                       return NextEvents(life, number, is_first, all_tenants);
                                     });
      if (!next.ok()) {
        status_ = next.status();
        return false;
      }
      events_.assign(next->begin(), next->end());
    }
    *event = std::move(events_.front());
    events_.pop_front();
    return true;
  }
  bool NextMessageSize(uint32_t* size) override {
    *size = 0;
    return !events_.empty();
  }
  void WaitForInitialMetadata() override {}
  grpc::Status Finish() override {
    return ToGrpc(status_.ok() ? absl::CancelledError("the watcher ends") : status_);
  }

 private:
  const Directories& directories_;
  const size_t index_;
  const bool all_tenants_;
  Life& life_;
  const uint64_t number_;
  bool has_begun_ = false;
  std::deque<v1::WatchEvent> events_;
  absl::Status status_;
};

class WatchTry final : public DirectoryServiceStub {
 public:
  WatchTry(const Directories* directories, size_t index)
      : directories_(directories), index_(index) {}
  grpc::ClientReaderInterface<v1::WatchEvent>* WatchRaw(grpc::ClientContext* /*context*/,
                                                        const v1::WatchRequest& request) override {
    return new WatchReader(directories_, index_, request.all_tenants());
  }

 private:
  const Directories* const directories_;
  const size_t index_;
};

}  // namespace

std::shared_ptr<DirectoryCaller::Stub> WatchOf(const Directories* directories, size_t index) {
  return std::make_shared<WatchTry>(directories, index);
}

void EndWatches(Life& life) { life.watches.clear(); }

}  // namespace ckv::sim
