// Goal: a request's sizes are checked before memory is taken by them, and a stream counts the
// memory that a request will take before it reads the next one. Method: messages by hand, and
// random ones; no daemon.

#include "server/rpc/attend_request.h"

#include <bit>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

constexpr uint32_t kRequestRows = 6;
const Geometry kGeometry = test::TestGeometry();

v1::AttendRequest RequestOf() {
  v1::AttendRequest request;
  request.set_row_count(kRequestRows);
  request.set_q(std::string(size_t{kRequestRows} * kGeometry.d_qk * 2, '\0'));
  return request;
}

TEST(AttendRequest, PartsTakeTheMemoryThatWasCounted) {
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    v1::AttendRequest request = RequestOf();
    AttendMemory memory;
    if (rng() % 2) {
      request.set_q_dtype(v1::QUERY_DTYPE_F32);
      request.set_q(std::string(size_t{kRequestRows} * kGeometry.d_qk * 4, '\0'));
    }
    const uint32_t group_rows = 1 + rng() % 7,
                   groups = (kRequestRows + group_rows - 1) / group_rows;
    const uint32_t k = 1 + rng() % 4;
    const uint32_t kind = rng() % 4;
    if (kind == 0) {
      request.mutable_row_limits()->set_group_rows(group_rows);
      request.mutable_row_limits()->set_limits(std::string(groups * 4, '\1'));
    } else if (kind < 3) {
      request.mutable_selection()->set_group_rows(group_rows);
      request.mutable_selection()->set_k(k);
      std::vector<int32_t> values(size_t{groups} * k * kind);
      for (int32_t& value : values) value = static_cast<int32_t>(rng() % 50);
      if (kind == 1) request.mutable_selection()->set_indices(Int32sToBytes(values));
      if (kind == 2) request.mutable_selection()->set_runs(Int32sToBytes(values));
    }
    const auto parts = PartsOf(request, kGeometry, memory);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(AttendMemoryBytes(request), memory.q.size() * sizeof(uint16_t) +
                                              memory.indices.size() * sizeof(int32_t) +
                                              memory.row_limits.size() * sizeof(uint32_t));
    EXPECT_EQ(parts->q.count, kRequestRows);
    EXPECT_EQ(parts->selection.present(), kind == 1 || kind == 2);
    EXPECT_EQ(parts->row_limits.present(), kind == 0);
  }
}

// Random bits have NaN, infinities and values that overflow.
TEST(AttendRequest, QueriesAreRoundedAsAllValuesAre) {
  std::vector<float> values(size_t{kRequestRows} * kGeometry.d_qk);
  std::mt19937 rng(2);
  for (float& value : values) value = std::bit_cast<float>(uint32_t(rng()));
  v1::AttendRequest request = RequestOf();
  request.set_q_dtype(v1::QUERY_DTYPE_F32);
  request.set_q(values.data(), values.size() * sizeof(float));
  AttendMemory memory;
  const auto parts = PartsOf(request, kGeometry, memory);
  ASSERT_TRUE(parts.ok()) << parts.status();
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(parts->q.data[i], Bf16FromFloat(values[i])) << values[i];
}

TEST(AttendRequest, RunsAreExpandedAndFilledUp) {
  v1::AttendRequest request = RequestOf();
  v1::Selection& selection = *request.mutable_selection();
  selection.set_group_rows(4);
  selection.set_k(2);
  const std::vector<int32_t> runs = {7, 2, -5, 0, /*second*/ 3, 1, 0, 4};
  selection.set_runs(Int32sToBytes(runs));
  AttendMemory memory;
  const auto parts = PartsOf(request, kGeometry, memory);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->selection.k, 5u);
  EXPECT_EQ(parts->selection.group_rows, 4u);
  EXPECT_THAT(memory.indices, testing::ElementsAre(7, 8, -1, -1, -1, 3, 0, 1, 2, 3));
}

// Goal: what is refused takes no memory, and a count that wraps a product is not taken for a size.
TEST(AttendRequest, ARefusedRequestTakesNoMemory) {
  const auto refused = [](const v1::AttendRequest& request) {
    AttendMemory memory;
    EXPECT_TRUE(absl::IsInvalidArgument(PartsOf(request, kGeometry, memory).status()));
    EXPECT_EQ(memory.indices.capacity() + memory.row_limits.capacity(), 0u);
    EXPECT_LE(AttendMemoryBytes(request), request.ByteSizeLong());
  };
  v1::AttendRequest request = RequestOf();
  v1::Selection& selection = *request.mutable_selection();
  selection.set_group_rows(kRequestRows);
  const auto set = [&](uint32_t k, const std::vector<int32_t>& runs) {
    selection.set_k(k);
    selection.set_runs(Int32sToBytes(runs));
  };
  for (const int32_t length : {1 << 24 | 1, INT32_MAX, INT32_MIN, -1}) {
    set(1, {0, length});
    refused(request);
  }
  set(1, {INT32_MAX, 2});
  refused(request);
  // 2^31 x 2^32 x 8 bytes are 0 modulo 2^64.
  set(1u << 31, {0, 1});
  request.set_row_count(UINT32_MAX);
  selection.set_group_rows(1);
  refused(request);
  request.clear_selection();
  request.mutable_row_limits()->set_limits("abcd");
  refused(request);
}

}  // namespace
}  // namespace ckv
