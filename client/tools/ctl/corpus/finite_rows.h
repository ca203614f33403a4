// Finds NaN, infinities and values beyond kRowMagnitudeMax in rows that are loaded: answers over
// them are NaN, or miss a logit that overflowed.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/tools/ctl/corpus/load_source.h"

namespace ckv::ctl {

// The index of the first value of `rows` that is NaN, infinite or beyond kRowMagnitudeMax, and how
// many there are. `rows` are whole rows of `geometry`. An fp8_ds_mla row has the values of its
// latent, its scales and its rope part, in this order.
struct NonFinite {
  uint64_t count = 0;
  uint64_t first = 0;
};
NonFinite FindNonFinite(const Geometry& geometry, std::span<const std::byte> rows);
// The same for whole index keys of a geometry with an index. A key has its values, then its scale.
NonFinite FindNonFiniteKeys(const IndexShape& index, std::span<const std::byte> keys);

// Returns the chunks of `source`, which outlives it, and checks the rows of each.
class FiniteCheck final : public ChunkSource {
 public:
  // If `reject`, Read refuses a chunk that has one.
  FiniteCheck(ChunkSource& source, bool reject);

  std::span<const int32_t> TokensOf(uint32_t ordinal) const override {
    return source_.TokensOf(ordinal);
  }
  absl::Status CheckUnchanged() const override { return source_.CheckUnchanged(); }
  //   InvalidArgument     the chunk is refused; names the place. Else as the source.
  absl::StatusOr<SourceChunk> Read(uint32_t ordinal) override;

  // A warning with the number of values in the chunks that were read, and the first place; empty if
  // there is none.
  std::string Warning() const;

 private:
  ChunkSource& source_;
  const bool reject_;
  std::vector<bool> seen_;  // chunks are read again before they are published
  uint64_t count_ = 0;
  std::string first_;
};

}  // namespace ckv::ctl
