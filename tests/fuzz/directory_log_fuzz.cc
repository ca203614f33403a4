// Goal: no bytes of a directory's log crash its reader, and no damage to a whole log is believed.
// Method: the first byte says what the rest is.
//   0  a file, behind its header
//   1  records, in a frame whose checksums are right
//   2  the same in three frames; then 2 bytes say where the file is cut, 2 which byte is changed,
//      and 1 by what: what is read back must be a prefix, or be refused

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "server/directory/log/change.h"
#include "server/directory/log/frame.h"
#include "tests/server/directory/log/log_file.h"

namespace ckv {
namespace {

// The payloads of the whole frames; a status that is not OK where it is damaged.
absl::StatusOr<std::vector<std::string>> ReadFrames(const std::string& bytes) {
  test::BytesFile file(bytes);
  FrameReader frames(&file, bytes.size());
  std::vector<std::string> payloads;
  while (true) {
    CKV_ASSIGN_OR_RETURN(const std::optional<std::string_view> payload, frames.Next());
    CKV_CHECK(frames.offset() <= std::max<size_t>(bytes.size(), kLogFileHeaderBytes));
    CKV_CHECK(payload.has_value() || frames.is_torn() == (frames.offset() < bytes.size()));
    if (!payload) return payloads;
    payloads.emplace_back(*payload);
  }
}

// Reads records; what they say must be what they would be written as.
void ReadAll(std::string_view payload) {
  const absl::Status status = ReadRecords(payload, [](const DirectoryChange& change) {
    if (change.kind == ChangeKind::kPublish) CKV_CHECK(ValidateCorpus(*change.corpus).ok());
    std::string record;
    AppendRecord(change, record);
    const absl::Status again = ReadRecords(record, [&](const DirectoryChange& same) {
      CKV_CHECK(change.kind != ChangeKind::kPublish || *same.corpus == *change.corpus);
      return absl::OkStatus();
    });
    CKV_CHECK(again.ok());
    return absl::OkStatus();
  });
  CKV_CHECK(status.ok() || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status));
  CKV_CHECK(status.message().size() < 1024);
}

void ReadDamaged(std::string_view input) {
  if (input.size() < 6) return;
  const auto at = [&](size_t i) { return static_cast<uint8_t>(input[i]); };
  const std::string payload(input.substr(5));
  std::string bytes = EncodeLogFileHeader(LogFileKind::kLog, 1);
  std::vector<std::string> whole;
  for (size_t i = 0; i < 3; ++i) {
    whole.push_back(payload + std::string(i, 'x'));
    bytes += EncodeFrame(i, whole[i]);
  }
  const size_t cut =
      kLogFileHeaderBytes + (at(0) | at(1) << 8) % (bytes.size() - kLogFileHeaderBytes + 1);
  const size_t place = at(2) | at(3) << 8;
  bytes.resize(cut);
  const bool changed = at(4) != 0 && place >= kLogFileHeaderBytes && place < cut;
  if (changed) bytes[place] = static_cast<char>(bytes[place] ^ at(4));
  const auto read = ReadFrames(bytes);
  CKV_CHECK(read.ok() || (changed && absl::IsDataLoss(read.status())));
  if (!read.ok()) return;
  CKV_CHECK(read->size() <= whole.size());
  for (size_t i = 0; i < read->size(); ++i) CKV_CHECK((*read)[i] == whole[i]);
}

void OneInput(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: {
      const auto read = ReadFrames(EncodeLogFileHeader(LogFileKind::kLog, 1) + std::string(rest));
      CKV_CHECK(read.ok() || absl::IsDataLoss(read.status()));
      break;
    }
    case 1:
      ReadAll(rest);
      break;
    default:
      ReadDamaged(rest);
  }
}

}  // namespace
}  // namespace ckv

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckv::OneInput(data, size);
  return 0;
}
