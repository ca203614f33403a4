// The changes of a directory's state that survive it, and their bytes in the log.
//
// A payload of a frame is a run of records. Integers are little-endian.
//
//   bytes  a record
//       1  kind: ChangeKind
//       1  version of the kind's body: 1, or 2 for a kPublish with prints
//       2  zero
//       4  body_bytes
//          body
//
//   bytes  body of kPublish: a corpus (store/corpus/corpus_bytes.h)
//
//   In version 2 each chunk follows the corpus:
//       1  1 if it has a print, otherwise 255
//      16  its print: head, whole; if it has one
//
//   bytes  bodies of the other kinds
//      16  kDrop: number of the drop, version of the corpus, then the names of tenant and corpus,
//          each after 1 byte of length
//       8  kEpochs: no epoch above it was given
//       8  kFounded: id of the folder. It is the first record of log.1
//      16  kContinues: number of the log before, and its bytes. It is the first of other logs
//      28  kSnapshotBegin: id of the folder, last version or number, as kEpochs, number of corpora
//       4  kSnapshotEnd: number of corpora
//      16  kGap: no version or number above the first one was given, up to the second one
//      32  kForget: number of the drop, folder_id and version (DroppedCorpus), version of the
//      corpus
//          that is here and goes, or 0; then the names as of kDrop
//      33  kTenantKey: name of the tenant after 1 byte of length, then its key
//
// A snapshot has kGap, kForget and kTenantKey for all that is remembered, before its corpora.
//
// No payload has 512 zeros in a row: no corpus has.
//
// A build reads the bodies of its own version and refuses later ones, and later kinds. So a build
// of before does not misread what a later one wrote. Without prints and keys, a folder is one of
// version 1 only.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
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
};

// Versions and numbers that a folder never gave: those above `after`, up to `until`.
struct VersionGap {
  uint64_t after = 0;
  uint64_t until = 0;

  friend bool operator==(const VersionGap&, const VersionGap&) = default;
};

// A value type. Fields that a kind does not name have their defaults.
struct DirectoryChange {
  ChangeKind kind = ChangeKind::kPublish;
  std::shared_ptr<const Corpus> corpus;  // kPublish, with its version
  std::string tenant, name;              // kDrop, kForget; kTenantKey has no name
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
};

// Appends the change as a record. A corpus to be published is valid and lists no leased members.
void AppendRecord(const DirectoryChange& change, std::string& payload);

// Calls `take` for each record of a payload in order; its error ends the reading and is returned.
// Counts and lengths are checked before anything is allocated.
//   DataLoss            the bytes are not records, or a corpus in them is not valid.
//   FailedPrecondition  a later version of ckv wrote a record.
absl::Status ReadRecords(std::string_view payload,
                         absl::FunctionRef<absl::Status(DirectoryChange)> take);

}  // namespace ckv
