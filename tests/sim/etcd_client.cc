// The product's EtcdClient over calls to the simulated cluster, in place of
// server/directory/etcd/etcd_client.cc.

#include "server/directory/etcd/etcd_client.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "proto/base/status.h"
#include "tests/sim/directories.h"
#include "tests/sim/etcd_cluster.h"

namespace ckv {
namespace {

// How long a watch waits at the node for events before it is a sign of life.
constexpr int64_t kWatchWait = 400 * sim::kMs;

}  // namespace

EtcdKeys EtcdKeys::Prefix(std::string prefix) {
  std::string end = prefix;
  ++end.back();
  return {std::move(prefix), std::move(end)};
}

class EtcdClient::Members {
 public:
  explicit Members(Clock* clock) : clock_(*clock), process_(*sim::Sim().current_process()) {}

  // Calls the cluster until it answers. As with gRPC, a call that was given up may still arrive.
  template <typename R>
  R Try(Instant deadline, const std::function<R(sim::EtcdCluster&)>& handler) {
    sim::EtcdCluster* const cluster = sim::TheEtcd();
    deadline = std::min(deadline, clock_.Now() + kCallMax);
    R result(absl::DeadlineExceededError("the deadline had passed"));
    while (clock_.Now() < deadline) {
      const auto ns = std::min<Duration>(kTryMax, deadline - clock_.Now()).count();
      result = sim::CallNode<R>(cluster->network(), &process_, cluster->node(),
                                sim::Sim().now() + ns, [cluster, handler](sim::Life& life) -> R {
                                  if (life.ending)
                                    return R(absl::UnavailableError("a majority is away"));
                                  return handler(*cluster);
                                });
      const absl::Status status = sim::StatusOf(result);
      if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return result;
      sim::Sim().SleepUntil(sim::Sim().now() + 50 * sim::kMs);
    }
    return result;
  }
  const sim::Process& process() const { return process_; }

  bool stopped = false;

 private:
  Clock& clock_;
  const sim::Process& process_;
};

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is declared so, for the real client.
EtcdClient::EtcdClient(std::vector<std::string> /*endpoints*/, Clock* clock)
    : members_(std::make_unique<Members>(clock)) {}
EtcdClient::~EtcdClient() = default;

absl::StatusOr<int64_t> EtcdClient::ReadPages(const EtcdKeys& keys, bool keys_only,
                                              int64_t revision, Instant deadline,
                                              absl::FunctionRef<absl::Status(EtcdPair)> take) {
  using Page = absl::StatusOr<sim::EtcdCluster::Page>;
  CKV_ASSIGN_OR_RETURN(sim::EtcdCluster::Page page,
                       members_->Try<Page>(deadline, [keys, revision](sim::EtcdCluster& cluster) {
                         return cluster.Read(keys, revision);
                       }));
  for (EtcdPair& pair : page.pairs) {
    if (keys_only) pair.value.clear();
    CKV_RETURN_IF_ERROR(take(std::move(pair)));
  }
  return page.revision;
}

absl::StatusOr<EtcdOutcome> EtcdClient::Commit(const EtcdTransaction& transaction,
                                               Instant deadline) {
  CKV_CHECK(transaction.writes.size() <= kWriteCountMax);
  return members_->Try<absl::StatusOr<EtcdOutcome>>(
      deadline, [transaction, from = &members_->process()](sim::EtcdCluster& cluster) {
        return cluster.Commit(transaction, *from);
      });
}

absl::Status EtcdClient::Compact(int64_t revision, Instant deadline) {
  return members_->Try<absl::Status>(
      deadline, [revision](sim::EtcdCluster& cluster) { return cluster.Compact(revision); });
}

absl::StatusOr<int64_t> EtcdClient::GrantLease(Duration ttl, Instant deadline) {
  return members_->Try<absl::StatusOr<int64_t>>(
      deadline, [ttl](sim::EtcdCluster& cluster) { return cluster.GrantLease(ttl); });
}

absl::StatusOr<Duration> EtcdClient::RenewLease(int64_t lease, Instant deadline) {
  return members_->Try<absl::StatusOr<Duration>>(
      deadline, [lease](sim::EtcdCluster& cluster) { return cluster.RenewLease(lease); });
}

absl::Status EtcdClient::RevokeLease(int64_t lease, Instant deadline) {
  return members_->Try<absl::Status>(
      deadline, [lease](sim::EtcdCluster& cluster) { return cluster.RevokeLease(lease); });
}

absl::Status EtcdClient::Watch(const EtcdKeys& keys, int64_t revision,
                               absl::FunctionRef<bool(std::span<const EtcdEvent>, int64_t)> take) {
  using Events = absl::StatusOr<sim::EtcdCluster::Events>;
  while (!members_->stopped) {
    sim::EtcdCluster* const cluster = sim::TheEtcd();
    const Events found = sim::CallNode<Events>(
        cluster->network(), &members_->process(), cluster->node(), sim::Sim().now() + sim::kSecond,
        [cluster, keys, revision](sim::Life& life) -> Events {
          if (life.ending) return absl::UnavailableError("a majority is away");
          return cluster->Watch(keys, revision, kWatchWait);
        });
    if (members_->stopped) break;
    CKV_RETURN_IF_ERROR(found.status());
    if (!take(found->events, found->revision)) return absl::OkStatus();
    revision = found->revision + 1;
  }
  return absl::CancelledError("watches are stopped");
}

void EtcdClient::StopWatches() { members_->stopped = true; }

absl::StatusOr<EtcdClient::Health> EtcdClient::CheckHealth(Instant /*deadline*/) {
  return absl::UnimplementedError("not simulated");
}

}  // namespace ckv
