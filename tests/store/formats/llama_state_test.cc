// Goal: a sequence state is read as llama.cpp means it, or refused before anything is sized by it;
// and one that is written has each byte where llama.cpp reads it.
// Method: states put together here word by word, each wrong in one thing; the writer's bytes are
// compared with those. tests/engines has states of llama.cpp itself.

#include "store/formats/llama_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/store/formats/test_files.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint32_t kFileMagic = 0x67677371, kDataMagic = 0xaf143cd8, kBf16 = 30;

// A state of 3 tokens at positions 5 to 7, 2 layers of 4-byte rows, in the first of its streams.
struct StateText {
  std::vector<uint32_t> head = {kFileMagic, 3, 3, 11, 12, 13};
  uint32_t streams = 1;
  std::vector<uint32_t> cells = {5, 1, 0, 6, 1, 0, 7, 1, 0};
  std::vector<uint32_t> layers = {0,    2,     kBf16, 4, 0,    0x10, 0x11,
                                  0x12, kBf16, 4,     0, 0x20, 0x21, 0x22};
  std::vector<uint32_t> tail;

  std::vector<std::byte> Bytes() const {
    std::vector<uint32_t> words = head;
    words.push_back(streams);
    words.push_back(static_cast<uint32_t>(cells.size() / 3));
    for (const auto* part : {&cells, &layers, &tail}) {
      words.insert(words.end(), part->begin(), part->end());
    }
    const auto bytes = std::as_bytes(std::span(words));
    return {bytes.begin(), bytes.end()};
  }
};

uint32_t WordOf(std::span<const std::byte> row) {
  uint32_t word = 0;
  EXPECT_EQ(row.size(), sizeof(word));
  std::memcpy(&word, row.data(), sizeof(word));
  return word;
}

TEST(LlamaState, ReadsWhatLlamaCppSaves) {
  const auto bytes = StateText().Bytes();
  const auto state = LlamaState::Parse(bytes);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->token_count(), 3u);
  EXPECT_THAT(state->token_ids(), ElementsAre(11, 12, 13));
  EXPECT_EQ(state->base_position(), 5u);
  EXPECT_EQ(state->layer_count(), 2u);
  EXPECT_EQ(state->row_bytes(), 4u);
  EXPECT_EQ(state->stream_count(), 1u);
  EXPECT_EQ(state->key_type(), LlamaKeyType::kBf16);
  EXPECT_EQ(WordOf(state->Rows(0, 0, 1)), 0x10u);
  EXPECT_EQ(WordOf(state->Rows(1, 2, 3)), 0x22u);
  EXPECT_EQ(state->Rows(1, 1, 3).size(), 8u);
}

TEST(LlamaState, ReadsADataBlockWithoutIds) {
  StateText text;
  text.head = {kDataMagic, 4};
  const auto bytes = text.Bytes();
  const auto state = LlamaState::Parse(bytes);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_THAT(state->token_ids(), IsEmpty());
  EXPECT_EQ(state->token_count(), 3u);
}

TEST(LlamaState, ReadsIdsThatLlamaServerPacked) {
  StateText text;
  text.head = {kFileMagic, 3, 7, ~0u, 1, 3, 11, 12, 13, 0};
  const auto bytes = text.Bytes();
  const auto state = LlamaState::Parse(bytes);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_THAT(state->token_ids(), ElementsAre(11, 12, 13));
}

TEST(LlamaState, TakesASequenceInAnyStreamAndKeysOfF16) {
  StateText text;
  text.streams = 3;
  text.tail = {0};
  text.layers[2] = text.layers[8] = 1;
  auto bytes = text.Bytes();
  // One empty stream before it.
  const uint32_t empty = 0;
  const auto zero = std::as_bytes(std::span(&empty, 1));
  bytes.insert(bytes.begin() + 28, zero.begin(), zero.end());
  const auto state = LlamaState::Parse(bytes);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->stream_count(), 3u);
  EXPECT_EQ(state->key_type(), LlamaKeyType::kF16);
  EXPECT_EQ(WordOf(state->Rows(1, 0, 1)), 0x20u);
}

void ExpectRefusal(const StateText& text, const char* what) {
  const auto bytes = text.Bytes();
  const absl::Status status = LlamaState::Parse(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(LlamaState, RefusesMalformedHeads) {
  StateText text;
  text.head[0] = 0x46554747;
  ExpectRefusal(text, "not a sequence state");
  text.head[0] = 0x6767736e;
  ExpectRefusal(text, "save one sequence");
  text = {};
  text.head[2] = 1u << 31;
  ExpectRefusal(text, "token ids, and the file ends");
  text.head = {kFileMagic, 3, 2, 11, 12};
  ExpectRefusal(text, "2 token ids and 3 cells");
  text.head = {kFileMagic, 3, 3, 11, ~1u, 13};
  ExpectRefusal(text, "token_ids[1] is -2");
  text.head = {kFileMagic, 3, 7, ~0u, 2, 3, 11, 12, 13, 0};
  ExpectRefusal(text, "packed in a way");
  text.head = {kFileMagic, 3, 7, ~0u, 1, 3, 11, 12, 13, 1};
  ExpectRefusal(text, "images");
  text.head = {kFileMagic, 3, 7, ~0u, 1, 2, 11, 12, 13, 0};
  ExpectRefusal(text, "images");
  text = {};
  text.head[1] = 4;
  const auto newer = text.Bytes();
  EXPECT_TRUE(absl::IsFailedPrecondition(LlamaState::Parse(newer).status()));
}

TEST(LlamaState, RefusesCellsThatAreNotOneRun) {
  StateText text;
  text.cells[6] = 8;
  ExpectRefusal(text, "cell 2 is at position 8, behind a gap from 7");
  text.cells[6] = 6;
  ExpectRefusal(text, "out of order");
  text = {};
  text.cells[0] = ~0u;
  ExpectRefusal(text, "cell 0 is at position -1");
  text = {};
  text.cells[4] = 2;
  ExpectRefusal(text, "cell 1 is of 2 sequences");
  text = {};
  text.cells.clear();
  text.layers.clear();
  ExpectRefusal(text, "no cells");
  text = {};
  text.streams = 0;
  ExpectRefusal(text, "0 streams");
  text.streams = 257;
  ExpectRefusal(text, "257 streams");
  text.streams = 2;
  text.tail = {3};
  text.tail.insert(text.tail.end(), text.cells.begin(), text.cells.end());
  ExpectRefusal(text, "bytes follow the keys");
}

TEST(LlamaState, RefusesKeysThatAreNotRows) {
  StateText text;
  text.layers[2] = 8;
  ExpectRefusal(text, "keys of q8_0 at layer 0");
  text.layers[2] = 77;
  ExpectRefusal(text, "ggml type 77");
  text = {};
  text.layers[8] = 1;
  ExpectRefusal(text, "another size or type");
  text = {};
  text.layers[9] = 2;
  ExpectRefusal(text, "another size or type");
  text = {};
  text.layers[1] = 0;
  ExpectRefusal(text, "0 layers");
  text.layers[1] = 513;
  ExpectRefusal(text, "513 layers");
  for (const uint32_t row_bytes : {0u, 3u, 2050u}) {
    text = {};
    text.layers[3] = row_bytes;
    ExpectRefusal(text, "keys of");
  }
  text = {};
  text.layers[4] = 1;  // the upper half of the row's size
  ExpectRefusal(text, "keys of 4294967300 bytes");
  text = {};
  text.tail = {kBf16, 4, 0, 1, 2, 3};  // a layer's values
  ExpectRefusal(text, "24 bytes follow the keys, and 0 should");
}

TEST(LlamaState, RefusesEveryTruncation) {
  StateText text;
  text.streams = 2;
  text.tail = {0};
  const auto bytes = text.Bytes();
  ASSERT_TRUE(LlamaState::Parse(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_TRUE(absl::IsInvalidArgument(LlamaState::Parse(cut).status())) << size;
  }
}

TEST(LlamaState, RecognisesAStateByItsFirstBytes) {
  const std::string path = test::TempPath("one.bin");
  WriteWholeFile(path, StateText().Bytes());
  EXPECT_TRUE(LlamaState::IsOne(path));
  const auto state = LlamaState::Open(path);
  EXPECT_TRUE(state.ok()) << state.status();
  WriteWholeFile(path, std::vector<std::byte>(3));
  EXPECT_FALSE(LlamaState::IsOne(path));
  EXPECT_THAT(std::string(LlamaState::Open(path).status().message()), HasSubstr(path));
  EXPECT_FALSE(LlamaState::IsOne(test::TempPath("absent")));
  EXPECT_TRUE(absl::IsNotFound(LlamaState::Open(test::TempPath("absent")).status()));
}

constexpr int32_t kIds[] = {11, 12, 13};
constexpr LlamaStateSpec kSpec = {
    .token_ids = kIds, .base_position = 5, .layer_count = 2, .row_bytes = 4};

std::span<const std::byte> Words(const std::vector<uint32_t>& words) {
  return std::as_bytes(std::span(words));
}

TEST(LlamaStateWriter, WritesTheBytesOfLlamaCpp) {
  for (const uint32_t streams : {1u, 4u}) {
    LlamaStateSpec spec = kSpec;
    spec.stream_count = streams;
    const std::string path = test::TempPath("written.ggsq");
    auto writer = LlamaStateWriter::Create(path, spec);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE(writer->Write(1, 0, Words({0x20, 0x21, 0x22})).ok());
    EXPECT_TRUE(writer->Write(0, 2, Words({0x12})).ok());
    EXPECT_TRUE(writer->Write(0, 0, Words({0x10, 0x11})).ok());
    ASSERT_TRUE(std::move(*writer).Finish().ok());
    StateText text;
    text.streams = streams;
    text.tail.assign(streams - 1, 0);
    EXPECT_EQ(ReadWholeFile(path), text.Bytes());
  }
}

// As of rows that are elsewhere: the reader takes none of those for rows.
TEST(LlamaStateWriter, TheLastCellsMayRepresentAll) {
  LlamaStateSpec spec = kSpec;
  spec.cell_count = 1;
  const std::string path = test::TempPath("one-cell.ggsq");
  auto writer = LlamaStateWriter::Create(path, spec);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(writer->Write(0, 0, Words({0x10})).ok());
  EXPECT_FALSE(writer->Write(1, 1, Words({0x20})).ok());
  EXPECT_TRUE(writer->Write(1, 0, Words({0x20})).ok());
  ASSERT_TRUE(std::move(*writer).Finish().ok());
  StateText text;
  text.cells = {7, 1, 0};
  text.layers = {0, 2, kBf16, 4, 0, 0x10, kBf16, 4, 0, 0x20};
  EXPECT_EQ(ReadWholeFile(path), text.Bytes());
  ExpectRefusal(text, "3 token ids and 1 cells");
}

TEST(LlamaStateWriter, AnIncompleteFileDoesNotAppear) {
  const std::string path = test::TempPath("half.ggsq");
  auto writer = LlamaStateWriter::Create(path, kSpec);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(writer->Write(0, 0, Words({1, 2, 3})).ok());
  EXPECT_TRUE(writer->Write(1, 0, Words({1, 2})).ok());
  const absl::Status status = std::move(*writer).Finish();
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1 has 2 cells of 3"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(LlamaStateWriter, RefusesRowsThatHaveNoPlace) {
  auto writer = LlamaStateWriter::Create(test::TempPath("refuses.ggsq"), kSpec);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(writer->Write(0, 1, Words({1})).ok());
  for (const absl::Status& status :
       {writer->Write(0, 0, Words({1, 2})), writer->Write(2, 0, Words({1})),
        writer->Write(1, 2, Words({1, 2})), writer->Write(1, 4, {}),
        writer->Write(1, 0, Words({1}).first(3))}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

TEST(LlamaStateWriter, RefusesWhatTheReaderWould) {
  const auto refused = [](auto change, const char* what) {
    LlamaStateSpec spec = kSpec;
    change(spec);
    const std::string path = test::TempPath("never.ggsq");
    const absl::Status status = LlamaStateWriter::Create(path, spec).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_FALSE(std::filesystem::exists(path));
  };
  refused([](LlamaStateSpec& spec) { spec.token_ids = {}; }, "tokens 0");
  refused([](LlamaStateSpec& spec) { spec.base_position = INT32_MAX - 2; }, "position");
  refused([](LlamaStateSpec& spec) { spec.layer_count = 513; }, "layers 513");
  refused([](LlamaStateSpec& spec) { spec.row_bytes = 2050; }, "bytes a row 2050");
  refused([](LlamaStateSpec& spec) { spec.cell_count = 4; }, "cells 4");
  refused([](LlamaStateSpec& spec) { spec.stream_count = 0; }, "streams 0");
  refused([](LlamaStateSpec& spec) { spec.stream_count = 257; }, "streams 257");
}

}  // namespace
}  // namespace ckv
