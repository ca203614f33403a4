// The corpus parts that a holder received from its directory, stored next to its chunks.
//
//   corpora/HEX    one part; HEX is a hash of its tenant and name
//
// Byte by byte, version 1. Integers are little-endian.
//
//   bytes  a file
//       8  magic "ckvpart1"
//       8  checksum of all that follows, XXH3-64
//       8  folder_id
//       4  chunk_count of the whole corpus
//       4  ordinal_count, then that many ordinals of 4 bytes
//          the chunks, as a corpus (store/corpus/corpus_bytes.h)
//
//   corpora/SEEN   which changes of its directory the holder has seen, and its tombstones
//
//   bytes  SEEN
//       8  magic "ckvseen2"; a "ckvseen1" file has no name
//       8  checksum of all that follows, XXH3-64
//      16  folder_id and number (SeenDirectory)
//          name of the holder that has seen them, after 1 byte of length
//       4  count of tombstones, then that many tombstones
//
//   bytes  a tombstone
//      24  folder_id, version and number
//          names of its tenant and corpus, each after 1 byte of length
//
// A write replaces a whole file, which is durable when the call returns. A build without support
// for parts leaves the folder `corpora` unchanged.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/corpus_part.h"
#include "store/disk/file_system.h"

namespace ckv {

// Used by one thread at a time.
class CorpusParts {
 public:
  using Key = std::pair<std::string, std::string>;  // tenant, name

  // Opens `corpora` in the folder `path`, which a ChunkFolder owns, and reads its files. If the
  // path is empty, parts are kept in memory. Damaged files are removed and seen() is reset, so that
  // the directory sends their parts again. `damaged` receives the path and the error of the first
  // one. `files` must outlive the object.
  //   Errors of FileSystem.
  static absl::StatusOr<std::unique_ptr<CorpusParts>> Open(FileSystem* files,
                                                           const std::string& path,
                                                           std::string* damaged);
  CorpusParts(const CorpusParts&) = delete;
  CorpusParts& operator=(const CorpusParts&) = delete;

  struct Summary {
    uint64_t version = 0;
    uint64_t folder_id = 0;
    friend bool operator==(const Summary&, const Summary&) = default;
  };
  // Returns the version and the folder id of every part.
  std::map<Key, Summary> List() const;
  // Reads one part.
  //   NotFound            the part does not exist.
  //   DataLoss            its file is damaged.
  absl::StatusOr<CorpusPart> Read(const Key& key) const;
  // Writes a valid part, in place of an earlier one of the same corpus.tenant and corpus.name.
  // Durable once it returns OK.
  //   ResourceExhausted   the disk is full; the earlier part remains.
  absl::Status Write(const CorpusPart& part);
  // Removes the part. Returns OK if there is none.
  absl::Status Remove(const Key& key);
  // Resets seen(), then removes a part that may still be current. Otherwise the directory would
  // conclude that the corpus is no longer placed on this holder.
  absl::Status GiveUp(const Key& key);

  // The changes of its directory that the holder has seen: all their parts were written or removed.
  const SeenDirectory& seen() const { return seen_; }
  // The name under which the holder has seen them, or "" if it was not recorded. Under another name
  // the holder has seen nothing, because the directory's list for that name was for another holder.
  const std::string& seen_by() const { return seen_by_; }
  // The tombstones that the holder received, sorted by number, at most kDroppedCountMax.
  const std::vector<DroppedCorpus>& dropped() const { return dropped_; }
  // Replaces seen(), seen_by() and dropped(). Durable once it returns OK. `by` is a valid name.
  //   ResourceExhausted   the disk is full; nothing has changed.
  absl::Status WriteSeen(const SeenDirectory& seen, const std::string& by,
                         std::vector<DroppedCorpus> dropped);

 private:
  struct Entry {
    Summary summary;
    std::string bytes;  // as in a file, if parts are kept in memory
  };
  CorpusParts(FileSystem* files, std::string folder) : files_(*files), folder_(std::move(folder)) {}
  absl::Status ReadAll(std::string* damaged);
  absl::Status ReadSeen(std::string* damaged);
  absl::Status ForgetSeen();

  FileSystem& files_;
  const std::string folder_;  // if empty, parts are in memory
  std::map<Key, Entry> entries_;
  SeenDirectory seen_;
  std::string seen_by_;
  std::vector<DroppedCorpus> dropped_;
};

}  // namespace ckv
