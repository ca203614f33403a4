// The encoding of a corpus in files: data that its chunks share is written once.
//
// Integers are little-endian. A name is 1 byte of length, then that many bytes.
//
//   bytes  a corpus
//       8  version
//       1  wanted copies of each chunk
//      25  policy: 8 ttl_ms, 8 quota_bytes, 1 kept_version_count, 8 expires_at_ms
//          tenant, a name
//          name of the corpus
//          geometry: 2 bytes of length, then JSON (store/formats/geometry_json.h)
//       4  holder_count, then that many names
//       4  chunk_count, then that many chunks
//
//   bytes  a chunk
//       1  flags
//      32  id
//      32  parent, without flags 1 and 2
//       4  token_count
//       8  position, without flags 4 and 8
//       1  without flag 16: the number of holders, then a 4-byte index into the names for each
//
//   flag  means
//      1  the parent is the previous chunk
//      2  there is no parent
//      4  the position is the end of the previous chunk
//      8  the position is 0
//     16  the holders are those of the previous chunk
//
// A chunk in a chain takes 37 bytes, and at most 78 with one holder. No corpus has 512 consecutive
// zero bytes: ids are not zero, and the bytes between two ids are fewer.

#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/corpus.h"

namespace ckv {

// Takes values from the front of untrusted bytes. Once bytes were missing, every value is zero.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  template <typename T>
  T Take() {
    T value{};
    const std::string_view bytes = TakeBytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string_view TakeBytes(size_t count) {
    if (left_.size() < count) {
      short_ = true;
      left_ = {};
      return {};
    }
    const std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return bytes;
  }
  // Takes a length, then that many bytes.
  template <typename Length>
  std::string_view TakeText() {
    return TakeBytes(Take<Length>());
  }
  size_t left() const { return left_.size(); }
  // Returns true if bytes were missing.
  bool IsShort() const { return short_; }
  // Returns true if none are missing and none are left.
  bool IsDone() const { return !short_ && left_.empty(); }

 private:
  std::string_view left_;
  bool short_ = false;
};

template <typename T>
void PutBytes(T value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename Length>
void PutText(std::string_view text, std::string& to) {
  PutBytes(static_cast<Length>(text.size()), to);
  to.append(text);
}

// Appends a corpus, which must be valid. Leased members are not written.
void PutCorpus(const Corpus& corpus, std::string& to);
// Takes a corpus. Counts and lengths are checked before anything is allocated.
//   DataLoss            the bytes do not encode a corpus, or the corpus is not valid.
absl::StatusOr<Corpus> TakeCorpus(ByteReader& from);

}  // namespace ckv
