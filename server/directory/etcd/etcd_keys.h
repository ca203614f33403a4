// The keys of a directory's state in etcd, and their values. All keys of a fleet begin with its
// prefix, "/ckv/" unless set.
//
//   key                           value
//   leader                        the leader's address; its lease ends with the leader
//   sequence                      of the last write: fence and number, 8 bytes each
//   folder                        the id of this state, 8 bytes: as of a folder (change.h)
//   epochs                        a record kEpochs
//   number                        the last version or number of a change, 8 bytes
//   gap/AFTER                     a record kGap
//   drop/NUMBER                   a record kForget: a tombstone
//   tenant/NAME                   a record kTenantKey
//   member/NAME                   a record kMember: a member that has a lease
//   drain/NAME                    a record kDrain: a holder that is drained
//   corpus/TENANT 0 NAME          version, 8 bytes; count of parts, 4 bytes; without parts the
//   record kPublish part/VERSION/INDEX            a part of a record that is longer than kPartBytes
//
// Records are those of the log (server/directory/log/change.h). Numbers in keys are 16 hexadecimal
// digits, so that keys are in their order. Integers in values are little-endian.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/directory/log/change.h"

namespace ckv {

// The longest value: etcd takes requests of 1.5 MiB.
inline constexpr size_t kEtcdPartBytes = size_t{512} << 10;

// A value type.
class EtcdLayout {
 public:
  explicit EtcdLayout(std::string prefix) : prefix_(std::move(prefix)) {}

  const std::string& prefix() const { return prefix_; }
  std::string Leader() const { return prefix_ + "leader"; }
  std::string Sequence() const { return prefix_ + "sequence"; }
  std::string Folder() const { return prefix_ + "folder"; }
  std::string Epochs() const { return prefix_ + "epochs"; }
  std::string Number() const { return prefix_ + "number"; }
  std::string Gap(uint64_t after) const { return prefix_ + "gap/" + Digits(after); }
  std::string Drops() const { return prefix_ + "drop/"; }
  std::string Drop(uint64_t number) const { return Drops() + Digits(number); }
  std::string Tenant(std::string_view name) const {
    return prefix_ + "tenant/" + std::string(name);
  }
  std::string Members() const { return prefix_ + "member/"; }
  std::string Member(std::string_view name) const { return Members() + std::string(name); }
  std::string Drains() const { return prefix_ + "drain/"; }
  std::string Drain(std::string_view name) const { return Drains() + std::string(name); }
  std::string Corpora() const { return prefix_ + "corpus/"; }
  std::string Corpus(std::string_view tenant, std::string_view name) const {
    return Corpora() + std::string(tenant) + '\0' + std::string(name);
  }
  std::string Parts() const { return prefix_ + "part/"; }
  std::string PartsOf(uint64_t version) const { return Parts() + Digits(version) + "/"; }
  std::string Part(uint64_t version, uint32_t index) const {
    return PartsOf(version) + Digits(index);
  }

  // The version in a part's key.
  //   DataLoss            it is no such key.
  absl::StatusOr<uint64_t> VersionOfPart(std::string_view key) const;

  // Returns the kind of a key. Unset: no key of this layout.
  enum class Kind : uint8_t {
    kLeader,
    kSequence,
    kFolder,
    kEpochs,
    kNumber,
    kGap,
    kDrop,
    kTenant,
    kMember,
    kDrain,
    kCorpus,
    kPart,
  };
  std::optional<Kind> KindOf(std::string_view key) const;

 private:
  static std::string Digits(uint64_t number);

  std::string prefix_;
};

// The value of a corpus's key.
struct EtcdCorpusValue {
  uint64_t version = 0;
  uint32_t part_count = 0;  // if 0, the record is here
  std::string_view record;  // borrowed

  std::string Encode() const;
  //   DataLoss            the bytes are no such value.
  static absl::StatusOr<EtcdCorpusValue> Decode(std::string_view value);
};

std::string EncodeEtcdNumber(uint64_t number);
//   DataLoss            the value has not 8 bytes.
absl::StatusOr<uint64_t> DecodeEtcdNumber(std::string_view value);

}  // namespace ckv
