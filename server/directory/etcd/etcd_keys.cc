#include "server/directory/etcd/etcd_keys.h"

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace ckv {

std::string EtcdLayout::Digits(uint64_t number) { return absl::StrFormat("%016x", number); }

std::optional<EtcdLayout::Kind> EtcdLayout::KindOf(std::string_view key) const {
  if (!key.starts_with(prefix_)) return std::nullopt;
  key.remove_prefix(prefix_.size());
  static constexpr std::pair<std::string_view, Kind> kWhole[] = {{"leader", Kind::kLeader},
                                                                 {"sequence", Kind::kSequence},
                                                                 {"folder", Kind::kFolder},
                                                                 {"epochs", Kind::kEpochs},
                                                                 {"number", Kind::kNumber}};
  for (const auto& [name, kind] : kWhole) {
    if (key == name) return kind;
  }
  static constexpr std::pair<std::string_view, Kind> kBegins[] = {
      {"gap/", Kind::kGap},       {"drop/", Kind::kDrop},   {"tenant/", Kind::kTenant},
      {"member/", Kind::kMember}, {"drain/", Kind::kDrain}, {"corpus/", Kind::kCorpus},
      {"part/", Kind::kPart}};
  for (const auto& [name, kind] : kBegins) {
    if (key.starts_with(name)) return kind;
  }
  return std::nullopt;
}

absl::StatusOr<uint64_t> EtcdLayout::VersionOfPart(std::string_view key) const {
  const size_t begin = Parts().size();
  uint64_t version = 0;
  if (key.size() <= begin + 16 || key[begin + 16] != '/' ||
      !absl::SimpleHexAtoi(absl::string_view(key.data() + begin, 16), &version))
    return absl::DataLossError(absl::StrFormat("etcd, key %s: no part of a corpus", key));
  return version;
}

std::string EncodeEtcdNumber(uint64_t number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

absl::StatusOr<uint64_t> DecodeEtcdNumber(std::string_view value) {
  uint64_t number = 0;
  if (value.size() != sizeof(number))
    return absl::DataLossError(absl::StrFormat("a number of %d bytes in etcd", value.size()));
  std::memcpy(&number, value.data(), sizeof(number));
  return number;
}

std::string EtcdCorpusValue::Encode() const {
  std::string bytes = EncodeEtcdNumber(version);
  bytes.append(reinterpret_cast<const char*>(&part_count), sizeof(part_count));
  bytes.append(record);
  return bytes;
}

absl::StatusOr<EtcdCorpusValue> EtcdCorpusValue::Decode(std::string_view value) {
  EtcdCorpusValue corpus;
  constexpr size_t kHeadBytes = sizeof(corpus.version) + sizeof(corpus.part_count);
  if (value.size() < kHeadBytes)
    return absl::DataLossError(absl::StrFormat("a corpus of %d bytes in etcd", value.size()));
  std::memcpy(&corpus.version, value.data(), sizeof(corpus.version));
  std::memcpy(&corpus.part_count, value.data() + sizeof(corpus.version), sizeof(corpus.part_count));
  corpus.record = value.substr(kHeadBytes);
  if ((corpus.part_count == 0) == corpus.record.empty())
    return absl::DataLossError("a corpus in etcd has neither a record nor parts, or both");
  return corpus;
}

}  // namespace ckv
