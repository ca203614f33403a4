// Packs a reference into the free bits of NaN values. EncodeReference, in order: checks the
// reference; writes fields, names and a checksum as bytes; Pack spreads them over the values, 7
// bits each. DecodeReference is the reverse, and checks the checksum. IsReference decides from the
// first values alone. DigestOfChunks identifies the chunks meant, whatever a corpus of the name has
// later.

#include "store/formats/reference_cell.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/base/sha256.h"
#include "proto/base/status.h"
#include "store/memory/chunk.h"

namespace ckv {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kReferenceMagic = "ckv-cell";
constexpr size_t kValueBits = 7;
constexpr uint16_t kQuietNan = 0x7fc0;
constexpr size_t kChecksumBytes = sizeof(uint64_t);

// The fields before the names. A row contains them as memory does.
struct ReferenceFields {
  char magic[8];
  uint32_t version;
  uint32_t layer;
  uint8_t digest[32];
  uint32_t chunk_begin;
  uint32_t chunk_end;
  uint64_t position;
  uint64_t token_count;
};
static_assert(sizeof(ReferenceFields) == 72);
constexpr size_t kNamesBegin = sizeof(ReferenceFields) + 2;

// Returns how many whole bytes the free bits of a row make.
size_t CapacityOf(size_t row_bytes) { return row_bytes / sizeof(uint16_t) * kValueBits / 8; }

uint16_t ValueAt(std::span<const std::byte> row, size_t index) {
  uint16_t value = 0;
  std::memcpy(&value, row.data() + index * sizeof(value), sizeof(value));
  return value;
}

// Returns the first `count` bytes of the free bits.
std::vector<uint8_t> Unpack(std::span<const std::byte> row, size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t bit = 0; bit < count * 8; ++bit) {
    const uint16_t value = ValueAt(row, bit / kValueBits);
    const size_t at = bit % kValueBits;
    const unsigned set = (value >> (at == 6 ? 15 : at)) & 1u;
    bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] | set << (bit % 8));
  }
  return bytes;
}

void Pack(std::span<const uint8_t> bytes, std::span<std::byte> row) {
  for (size_t i = 0; i < row.size() / sizeof(uint16_t); ++i) {
    uint16_t value = kQuietNan;
    for (size_t at = 0; at < kValueBits; ++at) {
      const size_t bit = i * kValueBits + at;
      if (bit / 8 >= bytes.size() || (bytes[bit / 8] >> (bit % 8) & 1) == 0) continue;
      value = static_cast<uint16_t>(value | 1u << (at == 6 ? 15 : at));
    }
    std::memcpy(row.data() + i * sizeof(value), &value, sizeof(value));
  }
}

// Returns what is wrong with a reference, or an empty string.
std::string Fault(const CellReference& reference) {
  if (reference.corpus.empty()) return "no corpus";
  for (const std::string* name : {&reference.corpus, &reference.tenant}) {
    const absl::Status status = ValidateName("name", *name);
    if (!status.ok()) return std::string(status.message());
  }
  if (reference.chunk_begin >= reference.chunk_end) return "no chunk";
  if (reference.layer >= kLayerCountMax) return absl::StrFormat("layer %d", reference.layer);
  if (reference.token_count == 0) return "no token";
  if (reference.position > kPositionMax ||
      reference.token_count > kPositionMax - reference.position) {
    return absl::StrFormat("%d tokens from position %d on, limit %d", reference.token_count,
                           reference.position, kPositionMax);
  }
  return "";
}

uint64_t ChecksumBefore(std::span<const uint8_t> bytes) {
  return ChecksumOf(std::as_bytes(bytes.first(bytes.size() - kChecksumBytes)));
}

}  // namespace

std::array<uint8_t, 32> DigestOfChunks(const Geometry& geometry,
                                       std::span<const ChunkPlacement> chunks) {
  Sha256 digest;
  digest.AppendString("ckv.reference.1");
  const ChunkId fingerprint = ModelFingerprint(geometry);
  digest.Append(std::as_bytes(std::span(fingerprint.bytes)));
  digest.AppendValue<uint64_t>(chunks.size());
  for (const ChunkPlacement& chunk : chunks) {
    digest.Append(std::as_bytes(std::span(chunk.id.bytes)));
  }
  return digest.Finish();
}

CellReference ReferenceTo(const Corpus& corpus, uint32_t chunk_begin, uint32_t chunk_end,
                          std::optional<uint64_t> position) {
  const auto chunks = std::span(corpus.chunks).subspan(chunk_begin, chunk_end - chunk_begin);
  CellReference reference;
  reference.corpus = corpus.name;
  reference.tenant = corpus.tenant;
  reference.digest = DigestOfChunks(corpus.geometry, chunks);
  reference.chunk_begin = chunk_begin;
  reference.chunk_end = chunk_end;
  reference.position = position.value_or(chunks.front().position);
  for (const ChunkPlacement& chunk : chunks) reference.token_count += chunk.token_count;
  return reference;
}

absl::Status EncodeReference(const CellReference& reference, std::span<std::byte> row) {
  if (const std::string fault = Fault(reference); !fault.empty()) {
    return absl::InvalidArgumentError("reference: " + fault);
  }
  const size_t needed =
      kNamesBegin + reference.corpus.size() + reference.tenant.size() + kChecksumBytes;
  if (row.size() % sizeof(uint16_t) != 0 || CapacityOf(row.size()) < needed) {
    return absl::InvalidArgumentError(
        absl::StrFormat("reference: %d bytes, and a row of %d has room for %d", needed, row.size(),
                        CapacityOf(row.size())));
  }
  ReferenceFields fields{};
  std::copy(kReferenceMagic.begin(), kReferenceMagic.end(), fields.magic);
  fields.version = kReferenceVersion;
  fields.layer = reference.layer;
  std::copy(reference.digest.begin(), reference.digest.end(), fields.digest);
  fields.chunk_begin = reference.chunk_begin;
  fields.chunk_end = reference.chunk_end;
  fields.position = reference.position;
  fields.token_count = reference.token_count;
  std::vector<uint8_t> bytes(CapacityOf(row.size()));
  std::memcpy(bytes.data(), &fields, sizeof(fields));
  bytes[kNamesBegin - 2] = static_cast<uint8_t>(reference.corpus.size());
  bytes[kNamesBegin - 1] = static_cast<uint8_t>(reference.tenant.size());
  const std::string names = reference.corpus + reference.tenant;
  std::copy(names.begin(), names.end(), bytes.begin() + kNamesBegin);
  const uint64_t checksum = ChecksumBefore(bytes);
  std::memcpy(bytes.data() + bytes.size() - kChecksumBytes, &checksum, kChecksumBytes);
  Pack(bytes, row);
  return absl::OkStatus();
}

bool IsReference(std::span<const std::byte> row) {
  if (row.size() % sizeof(uint16_t) != 0 ||
      CapacityOf(row.size()) < kReferenceMagic.size() + sizeof(uint32_t)) {
    return false;
  }
  for (size_t i = 0; i < row.size() / sizeof(uint16_t); ++i) {
    if ((ValueAt(row, i) & kQuietNan) != kQuietNan) return false;
  }
  const std::vector<uint8_t> magic = Unpack(row, kReferenceMagic.size());
  return std::equal(magic.begin(), magic.end(), kReferenceMagic.begin());
}

absl::StatusOr<CellReference> DecodeReference(std::span<const std::byte> row) {
  if (!IsReference(row)) return absl::InvalidArgumentError("reference: an ordinary row");
  const size_t capacity = CapacityOf(row.size());
  const std::vector<uint8_t> bytes = Unpack(row, capacity);
  ReferenceFields fields{};
  std::memcpy(&fields, bytes.data(), std::min(capacity, sizeof(fields)));
  if (fields.version != kReferenceVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "reference: version %d, this ckv reads version %d", fields.version, kReferenceVersion));
  }
  const auto damaged = [](std::string_view what) {
    return absl::DataLossError(
        absl::StrFormat("reference: %s\n  restore the sequence, and let the engine shift no "
                        "positions",
                        what));
  };
  if (capacity < kNamesBegin + kChecksumBytes) return damaged("the row is too short");
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + capacity - kChecksumBytes, kChecksumBytes);
  if (checksum != ChecksumBefore(bytes)) return damaged("its checksum is wrong");
  std::vector<std::byte> same(row.size());
  Pack(bytes, same);  // the checksum does not see up to 7 bits at the end
  if (!std::equal(row.begin(), row.end(), same.begin())) return damaged("bits behind its end");
  const size_t corpus_bytes = bytes[kNamesBegin - 2], tenant_bytes = bytes[kNamesBegin - 1];
  if (kNamesBegin + corpus_bytes + tenant_bytes + kChecksumBytes > capacity) {
    return damaged("its names go past the row");
  }
  CellReference reference;
  const auto* names = reinterpret_cast<const char*>(bytes.data()) + kNamesBegin;
  reference.corpus.assign(names, corpus_bytes);
  reference.tenant.assign(names + corpus_bytes, tenant_bytes);
  std::copy(std::begin(fields.digest), std::end(fields.digest), reference.digest.begin());
  reference.chunk_begin = fields.chunk_begin;
  reference.chunk_end = fields.chunk_end;
  reference.position = fields.position;
  reference.token_count = fields.token_count;
  reference.layer = fields.layer;
  if (const std::string fault = Fault(reference); !fault.empty()) return damaged(fault);
  return reference;
}

}  // namespace ckv
