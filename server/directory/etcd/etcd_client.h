// A client of an etcd cluster, version 3.4 or later, over gRPC: what a directory needs of it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"

namespace ckv {

// A key as it is at a revision. etcd counts revisions over the whole cluster: each transaction that
// changes something makes one.
struct EtcdPair {
  std::string key, value;
  int64_t create_revision = 0;  // the transaction that made the key
  int64_t mod_revision = 0;     // the last transaction that wrote it
  int64_t lease = 0;            // the key ends with it; 0 is none
};

// Keys from `begin` up to, but not including, `end`. An empty `end` is the key `begin` alone.
struct EtcdKeys {
  std::string begin, end;

  static EtcdKeys One(std::string key) { return {std::move(key), ""}; }
  // All keys that begin with `prefix`, which is not empty and does not end with the byte 255.
  static EtcdKeys Prefix(std::string prefix);
};

// A condition of a transaction.
struct EtcdCondition {
  enum class Of : uint8_t { kCreateRevision, kModRevision, kValue };
  Of of = Of::kCreateRevision;
  std::string key;
  int64_t revision = 0;  // 0 means that there is no key
  std::string value;     // for kValue
};

// A write of a transaction.
struct EtcdWrite {
  enum class Kind : uint8_t { kPut, kDelete };
  Kind kind = Kind::kPut;
  EtcdKeys keys;  // for kPut, one key
  std::string value;
  int64_t lease = 0;  // for kPut
};

struct EtcdTransaction {
  std::vector<EtcdCondition> conditions;   // all must hold
  std::vector<EtcdWrite> writes;           // each of another key
  std::vector<EtcdKeys> reads_if_refused;  // read if a condition does not hold
};

struct EtcdOutcome {
  bool applied = false;
  int64_t revision = 0;
  std::vector<EtcdPair> read;  // by reads_if_refused
};

// A change that a watch sees.
struct EtcdEvent {
  bool is_delete = false;
  EtcdPair pair;  // a deletion has only the key and the mod_revision
};

// Thread-safe. A call goes to one member of the cluster. If that cannot be reached, has no leader,
// or says nothing for kTryMax, the call goes to the next one, until its deadline. Later calls begin
// with the member that answered last.
//
// A call that was given up may still take effect, even after later calls: a member that was stopped
// proposes it once it continues. So each transaction must have conditions that hold only once, for
// example on a key that it changes itself. Then it takes effect at most once, in its turn or never.
//
//   Unavailable         no member could be reached, or the cluster has no leader: a majority of it
//                       is away.
//   DeadlineExceeded    no member answered in time. A transaction may have been applied, or be
//   later. ResourceExhausted   etcd's space is used up (its alarm NOSPACE), or the request is too
//   large. OutOfRange          the revision has been compacted away. NotFound            there is
//   no such lease.
class EtcdClient {
 public:
  // How long one member may be silent.
  static constexpr Duration kTryMax = std::chrono::seconds(1);
  // The time limit of a call without a deadline.
  static constexpr Duration kCallMax = std::chrono::seconds(30);
  // The limits of a transaction by etcd's defaults: 128 operations, 1.5 MiB.
  static constexpr size_t kWriteCountMax = 120;
  static constexpr size_t kTransactionBytesMax = size_t{1} << 20;

  // `endpoints` are the members' client addresses, "host:port", at least one. Does not use the
  // network. `clock` must outlive the client.
  EtcdClient(std::vector<std::string> endpoints, Clock* clock);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Calls `take` for each pair of `keys`, in order, all as of one revision, which it returns. With
  // revision 0 that is the latest; the cluster confirms that it is. Reads pages, so a prefix may be
  // of any size. An error of `take` ends the reading and is returned.
  absl::StatusOr<int64_t> Read(const EtcdKeys& keys, int64_t revision, Instant deadline,
                               absl::FunctionRef<absl::Status(EtcdPair)> take) {
    return ReadPages(keys, /*keys_only=*/false, revision, deadline, take);
  }
  // The same, without values.
  absl::StatusOr<int64_t> ReadKeys(const EtcdKeys& keys, int64_t revision, Instant deadline,
                                   absl::FunctionRef<absl::Status(EtcdPair)> take) {
    return ReadPages(keys, /*keys_only=*/true, revision, deadline, take);
  }
  // Applies the writes at once, if all conditions hold.
  absl::StatusOr<EtcdOutcome> Commit(const EtcdTransaction& transaction, Instant deadline);
  // Drops what is older than `revision`.
  absl::Status Compact(int64_t revision, Instant deadline);

  // Makes a lease that ends after `ttl`, which is rounded up to seconds, unless it is renewed.
  absl::StatusOr<int64_t> GrantLease(Duration ttl, Instant deadline);
  // Returns how long the lease lasts from now on, by etcd's clock: count from before the call.
  absl::StatusOr<Duration> RenewLease(int64_t lease, Instant deadline);
  // Ends the lease, and deletes its keys.
  absl::Status RevokeLease(int64_t lease, Instant deadline);

  // Watches `keys` from `revision` on. Calls `take` with all events of one or more whole
  // transactions, and the revision up to which it has shown everything. Without events, the call is
  // a sign of life. Returns when `take` returns false, or with an error; then watch again
  // from the next revision. StopWatches ends it, from any thread.
  //   Cancelled           StopWatches was called.
  absl::Status Watch(const EtcdKeys& keys, int64_t revision,
                     absl::FunctionRef<bool(std::span<const EtcdEvent>, int64_t)> take);
  // Ends all watches, and those that begin later.
  void StopWatches();

  struct Health {
    std::string version;
    int64_t db_bytes = 0;
    bool has_leader = false;
    bool is_full = false;  // the alarm NOSPACE
  };
  // The state of the cluster as the member that answers sees it.
  absl::StatusOr<Health> CheckHealth(Instant deadline);

 private:
  class Members;
  absl::StatusOr<int64_t> ReadPages(const EtcdKeys& keys, bool keys_only, int64_t revision,
                                    Instant deadline,
                                    absl::FunctionRef<absl::Status(EtcdPair)> take);

  const std::unique_ptr<Members> members_;
};

}  // namespace ckv
