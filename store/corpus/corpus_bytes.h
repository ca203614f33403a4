// A corpus as bytes, for files: what its chunks share is written once.
//
// Integers are little-endian. A name is 1 byte of length and as many bytes.
//
//   bytes  a corpus
//       8  version
//          tenant, a name
//          name of the corpus
//          geometry: 2 bytes of length, then JSON (store/formats/geometry_json.h)
//       4  holder_count, then so many names
//       4  chunk_count, then so many chunks
//
//   bytes  a chunk
//       1  flags
//      32  id
//      32  parent, without flags 1 and 2
//       4  token_count
//       8  position, without flags 4 and 8
//       1  without flag 16: how many holders, then a 4-byte index into the names for each
//
//   flag  says
//      1  the parent is the chunk before
//      2  there is no parent
//      4  the position is the end of the chunk before
//      8  the position is 0
//     16  the holders are those of the chunk before
//
// A chunk of a chain takes 37 bytes, and 78 at most with one holder. No corpus has 512 zeros in a
// row: ids are not zero, and what lies between two ids is shorter.

#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/corpus.h"

namespace ckv {

// Takes values from the front of bytes that are not trusted. After they ran short, every value is
// zero.
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
  // A length, then as many bytes.
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

// Appends a valid corpus without leased members.
void PutCorpus(const Corpus& corpus, std::string& to);
// Takes a corpus. Counts and lengths are checked before anything is allocated.
//   DataLoss            the bytes are not those of a corpus, or it is not valid.
absl::StatusOr<Corpus> TakeCorpus(ByteReader& from);

}  // namespace ckv
