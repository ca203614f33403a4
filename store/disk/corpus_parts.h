// The parts of corpora that a holder was told of, kept beside its chunks.
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
//       4  ordinal_count, then so many ordinals of 4 bytes
//          the chunks, as a corpus (store/corpus/corpus_bytes.h)
//
//   corpora/SEEN   how much of its directory the holder has seen, and drops that it was told of
//
//   bytes  SEEN
//       8  magic "ckvseen2"; "ckvseen1" has no name
//       8  checksum of all that follows, XXH3-64
//      16  folder_id and number (SeenDirectory)
//          name of the holder that has seen it, after 1 byte of length
//       4  count of drops, then so many drops
//
//   bytes  a drop
//      24  folder_id, version and number
//          names of its tenant and corpus, each after 1 byte of length
//
// A file is replaced as a whole and is durable when Write returns. A build that knows no parts
// leaves the folder `corpora` alone.

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

// One thread at a time.
class CorpusParts {
 public:
  using Key = std::pair<std::string, std::string>;  // tenant, name

  // Opens `corpora` in the folder `path`, which a ChunkFolder owns, and reads what is there. If the
  // path is empty, parts are kept in memory. A damaged file is removed, and the first one is told
  // in `damaged`: its part is asked for again, and seen() begins anew. `files` must outlive the
  // object.
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
  // The parts that are there.
  std::map<Key, Summary> List() const;
  //   NotFound            there is no such part.
  //   DataLoss            its file is damaged.
  absl::StatusOr<CorpusPart> Read(const Key& key) const;
  // Writes the part of corpus.tenant and corpus.name, in place of an earlier one. Durable once it
  // returns OK. The part is valid.
  //   ResourceExhausted   the disk is full; the earlier part is still there.
  absl::Status Write(const CorpusPart& part);
  // Removes the part. Returns OK if there is none.
  absl::Status Remove(const Key& key);
  // Removes a part that may still be true, after seen() was forgotten: a directory must not take
  // its absence for news.
  absl::Status GiveUp(const Key& key);

  // How much of its directory the holder has seen: all parts of that state were written or removed.
  const SeenDirectory& seen() const { return seen_; }
  // The name under which the holder has seen it, or "" if that was not kept. Under another name it
  // has seen nothing: what the directory lists for that name was another holder's.
  const std::string& seen_by() const { return seen_by_; }
  // Drops that the holder was told of, in the order of numbers, at most kDroppedCountMax.
  const std::vector<DroppedCorpus>& dropped() const { return dropped_; }
  // Replaces all three. Durable once it returns OK. `by` is a valid name.
  //   ResourceExhausted   the disk is full; all are as before.
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
