// A directory's durable state as it is in etcd: reading it, and the writes of its changes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/directory/etcd/etcd_client.h"
#include "server/directory/etcd/etcd_keys.h"
#include "server/directory/log/change.h"

namespace ckv {

// The facts about the keys in etcd that later writes need. A value type.
struct EtcdIndex {
  int64_t revision = 0;    // the facts are as of this revision
  uint64_t folder_id = 0;  // 0 in a new state
  std::string sequence;    // the value of its key; empty if there is none
  uint64_t number = 0;     // the last version or number
  uint32_t corpus_count = 0;
  std::map<std::string, uint64_t> parted;  // versions of corpora in parts, by the corpus's key
  std::set<uint64_t> drops;                // numbers of the tombstones
  std::set<uint64_t> stray_parts;          // versions of parts that no corpus has
};

// Reads the state as of one revision. Calls `replay` with changes as LogFolder::Open does:
// kSnapshotBegin, then gaps, tombstones, keys of tenants and corpora.
//   DataLoss            a value is malformed, or a part is missing; names the key.
//   Errors of EtcdClient::Read and of `replay`.
absl::StatusOr<EtcdIndex> ReadEtcdState(EtcdClient& client, const EtcdLayout& layout,
                                        Instant deadline,
                                        absl::FunctionRef<absl::Status(DirectoryChange)> replay);

// The transactions of a leader's changes, in order. Used by one thread.
class EtcdWriter {
 public:
  // `client` must outlive the writer. `fence` is the create revision of the leader's key.
  EtcdWriter(EtcdClient* client, EtcdLayout layout, int64_t fence, EtcdIndex index);

  // How a write ended.
  enum class End : uint8_t {
    kApplied,
    kRefused,  // etcd refused it for good, for example for want of space: nothing was changed
    kLost,     // another process leads, or has led: nothing was changed by this call
    kUnknown,  // no answer in time: call Flush again, or find out by reading the state
  };

  // Adds a change to the next transaction. Returns false, and adds nothing, if that is full or has
  // a change of the same key: Flush first. The first change always fits.
  bool Add(const DirectoryChange& change);
  bool is_empty() const { return batch_.empty(); }
  // Applies all changes that were added, at once. After kUnknown the same changes are still there.
  // After the other ends none are. `status` has the reason, unless kApplied.
  End Flush(Instant deadline, absl::Status& status);
  // Writes the id of a new state, and deletes the parts that an earlier leader left.
  End Begin(uint64_t folder_id, Instant deadline, absl::Status& status);
  // Drops the history of etcd if much was written since the last time. Until then etcd keeps every
  // earlier value, and it refuses writes once its space is used up. Watches that have seen the last
  // write miss nothing. An error is not reported: the next call tries again.
  void Compact(Instant deadline);
  // How much is written between two compactions: an 128th of etcd's default limit of 2 GiB.
  static constexpr size_t kCompactBytes = size_t{16} << 20;
  static constexpr uint64_t kCompactWriteCount = 10'000;

  const EtcdIndex& index() const { return index_; }

 private:
  struct Added {
    std::vector<EtcdWrite> writes;
    std::vector<std::string> parts;  // parts of a long corpus, written before
    std::string corpus_key;          // set for kPublish, kDrop and kForget
    uint64_t version = 0;            // the version in the keys of the parts
    uint64_t drop = 0;               // number of a new tombstone
    bool removes = false;            // the corpus is dropped
  };

  Added WritesOf(const DirectoryChange& change) const;
  void DeleteParts(const std::string& corpus_key, std::vector<EtcdWrite>& writes) const;
  // Applies one transaction with the fence and the next sequence number.
  End Apply(std::vector<EtcdWrite> writes, Instant deadline, absl::Status& status);
  void NoteApplied(const Added& added);

  EtcdClient& client_;
  const EtcdLayout layout_;
  const int64_t fence_;
  EtcdIndex index_;
  uint64_t sequence_number_ = 0;
  // Random, and part of each sequence. A process may lead again with the same fence. No late
  // transaction of its earlier writer may then be taken for one of this writer.
  const uint64_t token_;
  size_t written_bytes_ = 0;  // since the last compaction
  uint64_t written_count_ = 0;
  std::vector<Added> batch_;
  std::set<std::string> batch_keys_;
  size_t batch_bytes_ = 0, batch_writes_ = 0;
  uint64_t batch_number_ = 0;
  size_t parts_written_ = 0;  // parts of the first change of the batch
};

}  // namespace ckv
