// The scores of index keys on the AMX tile unit. Internal to this folder.

#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/partial.h"
#include "proto/geometry.h"

namespace ckv {

// Returns whether this machine can: it has AMX, and vectors that look up bytes (AVX512_VBMI).
bool AmxScores();

// Returns the bf16 values that a packed query takes.
size_t AmxQueryHalves(const IndexShape& shape);
// Packs a query as PackIndexQuery wrote it. `packed` is 64-byte aligned.
void AmxPackQuery(const IndexShape& shape, const float* q, uint16_t* packed) noexcept;
// As ScoreIndexKeys, with a packed query.
void AmxScoreKeys(const IndexShape& shape, const uint16_t* q, const float* weights,
                  const RowView& keys, float* scores) noexcept;

}  // namespace ckv
