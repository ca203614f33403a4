// Goal: a holder answers correctly, or refuses with a typed reason, over every fabric of this host.
// Method: a real Holder with real fabrics, driven by bare frames; answers are compared with the
// fp64 reference over the rows that were put.

#include "server/holder/holder.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/holder/holder_fixture.h"
#include "transport/body_checksum.h"

namespace ckv {
namespace {

using test::HolderTest;
using test::kEpoch;
using test::RawAttend;
using test::RawClient;
using test::RawPiece;
using test::RawReply;

INSTANTIATE_TEST_SUITE_P(Fabrics, HolderTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         test::FabricOf);

TEST_P(HolderTest, DenseAnswersAreRight) {
  Put();
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  for (const uint8_t flags : {0, 1, 2, 3}) {
    for (size_t chunks = 1; chunks <= handles.size(); ++chunks) {
      SCOPED_TRACE(testing::Message() << "flags " << int{flags} << ", " << chunks << " chunks");
      const std::vector<uint32_t> some(handles.data(), handles.data() + chunks);
      ExpectRight(*client, Dense(some, 1 + chunks * 4, chunks % 3, flags));
    }
  }
  const HolderStats stats = holder_->stats();
  EXPECT_EQ(stats.request_count, 20u);
  EXPECT_EQ(stats.query_row_count, 4u * (5 + 9 + 13 + 17 + 21));
  EXPECT_EQ(stats.error_count, 0u);
  EXPECT_TRUE(NothingPinned());
  EXPECT_GT(stats.bytes_in, 0u);
  EXPECT_GT(stats.bytes_out, 0u);
  EXPECT_EQ(stats.session_count, 1u);
  EXPECT_EQ(stats.lane_count, 1u);
}

TEST_P(HolderTest, SelectedAnswersAreRight) {
  Put();
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  for (const uint32_t group_rows : {1u, 4u}) {
    for (const uint8_t flags : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << "groups of " << group_rows << ", flags " << int{flags});
      RawAttend attend = Dense({}, 10, 1, flags);
      // Two position offsets; indices below 0, beyond the chunk, and twice; a chunk of nothing
      // selected and a dense one among them.
      const auto second = test::RandomBf16(attend.rows.size(), rng_);
      attend.rows.insert(attend.rows.end(), second.begin(), second.end());
      for (uint32_t i = 0; i < handles.size(); ++i) {
        RawPiece piece = {.handle = handles[i], .copy = i % 2};
        if (i != 3) {
          piece.k = i == 4 ? 0 : 6;
          piece.group_rows = group_rows;
          piece.indices.emplace();
          const size_t groups = (attend.row_count + group_rows - 1) / group_rows;
          for (size_t j = 0; j < groups * piece.k; ++j) {
            piece.indices->push_back(static_cast<int32_t>(rng_() % 70) - 3);
          }
        }
        attend.pieces.push_back(std::move(piece));
      }
      ExpectRight(*client, attend);
    }
  }
}

TEST_P(HolderTest, EveryErrorHasItsType) {
  Put();
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  const RawAttend good = Dense({handles[0], handles[1]}, 2);

  RawAttend attend = good;
  attend.pieces[1].handle = 1000;
  absl::Status status = ErrorOf(*client, attend, client->Header());
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  attend.pieces[1].handle = 0;
  EXPECT_TRUE(absl::IsNotFound(ErrorOf(*client, attend, client->Header())));

  attend = good;
  attend.layer = 7;
  status = ErrorOf(*client, attend, client->Header());
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "layer 7, model has 3");

  attend = good;
  attend.pieces[1].handle = attend.pieces[0].handle;
  status = ErrorOf(*client, attend, client->Header());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << "counted twice (I1)";
  attend.per_piece = true;
  status = ErrorOf(*client, attend, client->Header());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << "of two partials of one segment, too";

  // 4096 rows fit the request slot, their f32 partials do not fit the reply's.
  attend = Dense({handles[0]}, 4096);
  status = ErrorOf(*client, attend, client->Header());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("1048576"));

  RequestHeader header = client->Header();
  header.deadline_us = 0;
  EXPECT_TRUE(absl::IsDeadlineExceeded(ErrorOf(*client, good, header)));
  header = client->Header();
  header.epoch = kEpoch.value - 1;
  EXPECT_TRUE(absl::IsAborted(ErrorOf(*client, good, header)));
  header = client->Header();
  header.session ^= 1;
  EXPECT_TRUE(absl::IsAborted(ErrorOf(*client, good, header)));

  holder_->lease().Revoke();
  EXPECT_TRUE(absl::IsUnavailable(ErrorOf(*client, good, client->Header())));
  holder_->lease().Grant({kEpoch.value + 1}, kInstantMax);
  EXPECT_TRUE(absl::IsAborted(ErrorOf(*client, good, client->Header()))) << "a new life";
  holder_->lease().Grant(kEpoch, kInstantMax);

  // The lane has survived all of it.
  ASSERT_TRUE(ErrorOf(*client, good, client->Header()).ok());
  const HolderStats stats = holder_->stats();
  EXPECT_EQ(stats.error_count, 11u);
  EXPECT_EQ(stats.errors[static_cast<size_t>(absl::StatusCode::kAborted)], 3u);
  EXPECT_EQ(stats.refusals[static_cast<size_t>(Refusal::kStaleSession)], 3u);
  EXPECT_EQ(stats.refusals[static_cast<size_t>(Refusal::kNoLease)], 1u);
  EXPECT_EQ(stats.refused_count, 0u) << "no queue was full";
  EXPECT_EQ(stats.expired_count, 1u);
  EXPECT_TRUE(NothingPinned());
}

// Fields that a later build will use are answered Unimplemented, and the lane stays. So a newer
// requester can find out, frame by frame, and use the older form.
TEST_P(HolderTest, AFieldOfALaterBuildIsRefusedAndTheLaneStays) {
  Put();
  const auto client = Open();
  const RawAttend good = Dense({client->Resolve(corpus_)[0]}, 2);
  std::vector<std::byte> frame(1u << 16);
  const auto change = [&](auto edit) {
    frame.resize(1u << 16);
    frame.resize(test::EncodeAttend(good, corpus_.geometry.d_qk, client->Header(), frame));
    SegmentEntry segment;
    std::memcpy(&segment, frame.data() + sizeof(RequestHeader), sizeof(segment));
    edit(segment);
    std::memcpy(frame.data() + sizeof(RequestHeader), &segment, sizeof(segment));
    client->PostBytes(frame);
    const auto reply = client->Await();
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? reply->status() : reply.status();
  };
  const absl::Status limits = change([](SegmentEntry& segment) { segment.limit_begin = 0; });
  EXPECT_TRUE(absl::IsUnimplemented(limits)) << limits;
  const absl::Status blocks = change([](SegmentEntry& segment) { segment.index_rows = 64; });
  EXPECT_TRUE(absl::IsUnimplemented(blocks)) << blocks;
  ExpectRight(*client, good);
  EXPECT_TRUE(NothingPinned());
}

TEST_P(HolderTest, ADroppedChunkIsNotFoundUntilItIsPutAgain) {
  Put();
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  EXPECT_EQ(client->Resolve(corpus_), handles) << "asked twice, the same handles";
  ASSERT_TRUE(holder_->store().Drop(corpus_.chunks[1].info.id).ok());
  const RawAttend attend = Dense({handles[0], handles[1]}, 2);
  const absl::Status dropped = ErrorOf(*client, attend, client->Header());
  EXPECT_TRUE(absl::IsNotFound(dropped)) << dropped;
  EXPECT_EQ(client->Resolve(corpus_)[1], 0u);
  ASSERT_TRUE(test::PutChunk(holder_->store(), corpus_.geometry, corpus_.chunks[1]).ok());
  EXPECT_EQ(client->Resolve(corpus_), handles);
  ExpectRight(*client, attend);
}

TEST_P(HolderTest, AMalformedFrameClosesItsLaneOnly) {
  Put();
  const auto victim = Open({.lane_count = 2});
  const std::vector<uint32_t> handles = victim->Resolve(corpus_);
  const RawAttend good = Dense({handles[0], handles[1]}, 2);
  std::vector<std::byte> frame(1u << 16);
  frame.resize(test::EncodeAttend(good, corpus_.geometry.d_qk, victim->Header(), frame));
  for (uint32_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    auto peer = Open();
    (void)peer->Resolve(corpus_);
    RequestHeader header = peer->Header();
    std::vector<std::byte> bytes(frame);
    bytes.resize(test::EncodeAttend(good, corpus_.geometry.d_qk, header, bytes));
    if (seed % 3 == 0) {
      bytes[rng() % sizeof(RequestHeader)] ^= std::byte{1} << rng() % 8;  // its checksum detects it
    } else if (seed % 3 == 1) {
      bytes.resize(rng() % bytes.size());
    } else {
      // A correct checksum over false counts.
      std::memcpy(&header, bytes.data(), sizeof(header));
      uint32_t* const fields[] = {&header.row_count, &header.piece_count, &header.index_count,
                                  &header.body_bytes};
      *fields[rng() % 4] += 1 + rng() % 1000;
      EncodeHeader(header, bytes);
    }
    peer->PostBytes(bytes);
    const absl::StatusOr<RawReply> reply = peer->Await();
    EXPECT_FALSE(reply.ok() && reply->status().ok()) << "a lie was answered";
    if (!reply.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(reply.status())) << reply.status();
    }
    ExpectRight(*victim, good);
  }
}

TEST_P(HolderTest, ProbesEchoAndFetchesBringTheRows) {
  Put();
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  std::vector<std::byte> body(1000);
  for (std::byte& b : body) b = static_cast<std::byte>(rng_());
  auto reply = client->CallBytes(client->Header(), body);
  ASSERT_TRUE(reply.ok() && reply->status().ok());
  EXPECT_EQ(reply->body, body);

  const auto fetch = [&](const FetchEntry& entry) {
    RequestHeader header = client->Header();
    header.kind = WireKind::kFetch;
    return *client->CallBytes(header, std::as_bytes(std::span(&entry, 1)));
  };
  const uint32_t d_qk = corpus_.geometry.d_qk;
  const FetchEntry entry = {.handle = handles[3],
                            .tensor_begin = 1,
                            .tensor_count = 2,
                            .token_begin = 10,
                            .token_count = 120};
  const RawReply rows = fetch(entry);
  ASSERT_TRUE(rows.status().ok()) << rows.status();
  EXPECT_EQ(
      rows.header.body_checksum,
      SharesMemory(GetParam()) ? 0 : BodyChecksum(entry, corpus_.geometry.row_bytes(), rows.body));
  std::vector<uint16_t> expected;
  for (const uint32_t layer : {1, 2}) {
    const auto& all = corpus_.chunks[3].layers[layer];
    expected.insert(expected.end(), all.begin() + 10 * d_qk, all.begin() + 130 * d_qk);
  }
  ASSERT_EQ(rows.body.size(), expected.size() * 2);
  EXPECT_EQ(std::memcmp(rows.body.data(), expected.data(), rows.body.size()), 0);

  EXPECT_TRUE(
      absl::IsNotFound(fetch({.handle = 1000, .tensor_count = 1, .token_count = 1}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      fetch({.handle = handles[3], .tensor_begin = 2, .tensor_count = 2, .token_count = 1})
          .status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      fetch({.handle = handles[3], .tensor_count = 1, .token_begin = 100, .token_count = 31})
          .status()));
}

// Goal: chosen rows are returned in their order, duplicates too, and slices of every row, in one
// transfer each. An index that the chunk does not have is refused, and the lane continues.
TEST_P(HolderTest, ChosenRowsAndSlicesAreGathered) {
  Put();
  const auto client = Open();
  const uint32_t handle = client->Resolve(corpus_)[3];
  const uint64_t row_bytes = corpus_.geometry.row_bytes();
  const auto fetch = [&](FetchEntry entry, const std::vector<int32_t>& indices) {
    entry.handle = handle;
    RequestHeader header = client->Header();
    header.kind = WireKind::kFetch;
    std::vector<std::byte> body(sizeof(entry) + indices.size() * 4);
    std::memcpy(body.data(), &entry, sizeof(entry));
    if (!indices.empty()) std::memcpy(body.data() + 32, indices.data(), indices.size() * 4);
    return *client->CallBytes(header, body);
  };
  const auto slice_of = [&](uint32_t layer, uint32_t token, const FetchEntry& entry) {
    const auto rows = std::as_bytes(std::span(corpus_.chunks[3].layers[layer]));
    return rows.subspan(token * row_bytes + entry.column_begin, entry.sent_row_bytes(row_bytes));
  };
  const auto expect = [&](const FetchEntry& entry, const std::vector<int32_t>& indices) {
    const uint64_t pushes = holder_->stats().push_count;
    const RawReply got = fetch(entry, indices);
    ASSERT_TRUE(got.status().ok()) << got.status();
    EXPECT_EQ(holder_->stats().push_count, pushes + 1);
    std::vector<std::byte> want;
    for (uint32_t layer = 0; layer < entry.tensor_count; ++layer) {
      for (uint32_t t = 0; t < entry.token_count; ++t) {
        const uint32_t token =
            indices.empty() ? entry.token_begin + t : static_cast<uint32_t>(indices[t]);
        const auto slice = slice_of(entry.tensor_begin + layer, token, entry);
        want.insert(want.end(), slice.begin(), slice.end());
      }
    }
    EXPECT_EQ(got.body, want);
    const uint32_t sum = BodyChecksum(entry, entry.sent_row_bytes(row_bytes), want);
    EXPECT_EQ(got.header.body_checksum, SharesMemory(GetParam()) ? 0 : sum);
  };
  const std::vector<int32_t> chosen = {129, 0, 64, 64, 3, 129};
  FetchEntry entry = {.tensor_begin = 2, .tensor_count = 1, .token_count = 6, .index_count = 6};
  expect(entry, chosen);
  entry.column_begin = 64;
  entry.column_bytes = 20;
  expect(entry, chosen);
  expect({.tensor_count = 3, .token_begin = 7, .token_count = 120, .column_bytes = 48}, {});
  // More rows than the chunk has: rows may repeat.
  std::vector<int32_t> many(300);
  for (int32_t i = 0; i < 300; ++i) many[size_t(i)] = i % 130;
  expect({.tensor_count = 1, .token_count = 300, .index_count = 300}, many);

  entry = {.tensor_count = 1, .token_count = 2, .index_count = 2};
  for (const int32_t bad : {-1, 130, INT32_MIN, INT32_MAX}) {
    const absl::Status status = fetch(entry, {0, bad}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("index 1 is"));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      fetch({.tensor_count = 1, .token_count = 1, .column_begin = 188, .column_bytes = 8}, {})
          .status()));
  expect(entry, {5, 5});
}

TEST_P(HolderTest, RefusesAFetchThatDoesNotFitTheReply) {
  Put();
  const auto client =
      Open({.shape = {.slot_count = 2, .request_bytes_max = 4096, .reply_bytes_max = 8192}});
  const FetchEntry entry = {
      .handle = client->Resolve(corpus_)[3], .tensor_count = 1, .token_count = 130};
  RequestHeader header = client->Header();
  header.kind = WireKind::kFetch;
  const auto reply = client->CallBytes(header, std::as_bytes(std::span(&entry, 1)));
  ASSERT_TRUE(reply.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(reply->status())) << reply->status();
  EXPECT_THAT(std::string(reply->status().message()), testing::HasSubstr("8128"));
}

}  // namespace
}  // namespace ckv
