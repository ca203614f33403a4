// The durable changes of a directory's state, and their bytes in the log.
//
// A frame's payload is a sequence of records. Integers are little-endian.
//
//   bytes  a record
//       1  kind: ChangeKind
//       1  version of the kind's body: 1
//       2  zero
//       4  body_bytes
//          body
//
//   bytes  body of kPublish: a corpus (store/corpus/corpus_bytes.h), then for each of its chunks
//       1  1 if it has token hashes, otherwise 255
//      16  its token hashes, if it has them: head, whole
//
//   bytes  bodies of the other kinds
//      16  kDrop: number of the drop, version of the corpus, then the names of tenant and corpus,
//          each preceded by 1 byte of length
//       8  kEpochs: the highest epoch that may have been given
//       8  kFounded: id of the folder. The first record of log.1
//      16  kContinues: number of the previous log, and its bytes. The first record of other logs
//      28  kSnapshotBegin: id of the folder, last version or number, as kEpochs, number of corpora
//       4  kSnapshotEnd: number of corpora
//      16  kGap: after, until (VersionGap)
//      32  kForget: number of the drop, folder_id and version (DroppedCorpus), version of the
//          local corpus that is removed, or 0; then the names as for kDrop
//      33  kTenantKey: 1 byte of length and the tenant's name, then its key
//      21  kMember: 1 byte role, 1 byte kernel target (proto/kernel_target.h), 8 bytes epoch, 4
//          bytes milliseconds of its lease. Then its name, its address (2 bytes of length), and its
//          host, rack and zone
//       9  kMemberGone: its epoch, then its name
//       2  kDrain: 1 if the holder is drained from now on, 0 if no longer; 1 byte of length and its
//          name
//
// A snapshot has kGap, kForget, kTenantKey and kDrain records for all gaps, tombstones, keys and
// drained holders, before its corpora. A folder has no members: only directories that share a
// state in etcd save them.
//
// No payload has 512 zeros in a row, because no corpus has.
//
// A build refuses bodies of later versions than its own, and later kinds. So an older build does
// not misread what a later one wrote.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

enum class ChangeKind : uint8_t {
  kPublish = 1,
  kDrop = 2,
  kEpochs = 3,
  kFounded = 4,
  kContinues = 5,
  kSnapshotBegin = 6,
  kSnapshotEnd = 7,
  kGap = 8,
  kForget = 9,
  kTenantKey = 10,
  kMember = 11,
  kMemberGone = 12,
  kDrain = 13,
};

// Corpus versions and drop numbers that a folder never gave: those above `after`, up to `until`.
struct VersionGap {
  uint64_t after = 0;
  uint64_t until = 0;

  friend bool operator==(const VersionGap&, const VersionGap&) = default;
};

// A value type. Fields that a kind does not use have their defaults.
struct DirectoryChange {
  ChangeKind kind = ChangeKind::kPublish;
  std::shared_ptr<const Corpus> corpus;  // kPublish, with its version
  std::string tenant, name;              // kDrop, kForget; kTenantKey has no name
  std::string holder;                    // kDrain
  bool drains = false;                   // kDrain
  TenantKey key;                         // kTenantKey
  uint64_t version = 0;                  // kDrop, kForget, kSnapshotBegin
  uint64_t number = 0;                   // kDrop, kForget
  uint64_t removed_version = 0;          // kForget
  VersionGap gap;                        // kGap
  uint64_t epoch_max = 0;                // kEpochs, kSnapshotBegin
  uint64_t folder_id = 0;                // kForget, kFounded, kSnapshotBegin
  uint64_t log_number = 0;               // kContinues
  uint64_t log_bytes = 0;                // kContinues
  uint32_t corpus_count = 0;             // kSnapshotBegin, kSnapshotEnd
  Member member;                         // kMember; kMemberGone has its id and epoch
  Duration lease_ttl{0};                 // kMember, in whole milliseconds
};

// Appends the change as a record. A corpus to be published must be valid and list no leased
// members.
void AppendRecord(const DirectoryChange& change, std::string& payload);

// Calls `take` for each record of a payload in order. An error of `take` ends the reading and is
// returned. Checks counts and lengths before allocating anything.
//   DataLoss            the bytes are not records, or a corpus in them is not valid.
//   FailedPrecondition  a later version of ckv wrote a record.
absl::Status ReadRecords(std::string_view payload,
                         absl::FunctionRef<absl::Status(DirectoryChange)> take);

}  // namespace ckv
