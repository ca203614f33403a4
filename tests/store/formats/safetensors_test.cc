#include "store/formats/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <numeric>

#include "tests/store/formats/test_files.h"

namespace ckv {
namespace {

using Metadata = std::map<std::string, std::string, std::less<>>;

bool Mentions(const absl::Status& status, std::string_view what) {
  return std::string(status.message()).find(what) != std::string::npos;
}

// Goal: the format is read as published, not only as our writer writes it. Method: a file of 8 + 59
// + 2 bytes spelled out.
TEST(SafetensorsFile, ReadsAFileWrittenByHand) {
  const std::string_view file(
      "\x3b\0\0\0\0\0\0\0"
      "{\"test\":{\"dtype\":\"I32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}"
      "\x01\x02\x03\x80",
      8 + 59 + 4);
  const auto parsed = SafetensorsFile::Parse(std::as_bytes(std::span(file)));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->metadata().empty());
  const auto tensor = parsed->Tensor("test");
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->dtype, TensorDtype::kI32);
  EXPECT_EQ(tensor->shape, (std::vector<uint64_t>{1, 1}));
  EXPECT_EQ(tensor->element_count(), 1u);
  int32_t value = 0;
  std::memcpy(&value, tensor->data.data(), sizeof(value));
  EXPECT_EQ(value, static_cast<int32_t>(0x80030201));
}

TEST(SafetensorsFile, AcceptsWhatTheFormatAllows) {
  for (const auto& [header, data_bytes] : std::vector<std::pair<std::string_view, size_t>>{
           {"{}", 0},
           {"{}      ", 0},
           {R"({"__metadata__":{}})", 0},
           // Scalars have no axes; an empty tensor takes no bytes; the order of names is free.
           {R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
            R"("a":{"shape":[],"data_offsets":[0,4],"dtype":"F32"},)"
            R"("e":{"dtype":"BF16","shape":[0,576],"data_offsets":[4,4]}})",
            6},
       }) {
    const auto bytes = RawSafetensors(header, data_bytes);
    const auto parsed = SafetensorsFile::Parse(bytes);
    EXPECT_TRUE(parsed.ok()) << header << ": " << parsed.status();
  }
}

struct Malformed {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* error;
};

std::vector<Malformed> MalformedHeaders() {
  const std::string u8 = R"("dtype":"U8")";
  const std::string deep(100'000, '[');
  std::string rank9 = R"({"t":{"dtype":"U8","data_offsets":[0,1],"shape":[1,1,1,1,1,1,1,1,1]}})";
  return {
      {"empty header", "", 0, "does not start with {"},
      {"not JSON", "{]", 0, "not JSON in UTF-8 near byte 2"},
      {"leading blank", " {}", 0, "does not start with {"},
      {"array", "[]", 0, "does not start with {"},
      {"two documents", "{}{}", 0, "not JSON"},
      {"NUL ends the text", std::string("{}\0x", 4), 0, "a NUL byte"},
      {"cut short", R"({"t":{"dtype":"U8")", 0, "not JSON"},
      {"not UTF-8", "{\"\xff\":1}", 0, "not JSON in UTF-8"},
      {"overlong UTF-8", "{\"\xc0\x80\":1}", 0, "not JSON in UTF-8"},
      {"lone surrogate", R"({"\ud800":1})", 0, "not JSON in UTF-8"},
      {"depth bomb", R"({"t":)" + deep, 0, "an array is no tensor"},
      {"deep shape", R"({"t":{"shape":)" + deep, 0, "shape: unexpected an array"},
      {"tensor is a number", R"({"t":1})", 0, "tensor 't': a number is no tensor"},
      {"tensor is null", R"({"t":null})", 0, "null is no tensor"},
      {"missing dtype", R"({"t":{"shape":[0],"data_offsets":[0,0]}})", 0, "must have dtype, shape"},
      {"missing shape", "{\"t\":{" + u8 + R"(,"data_offsets":[0,0]}})", 0,
       "must have dtype, shape"},
      {"missing offsets", "{\"t\":{" + u8 + R"(,"shape":[0]}})", 0, "must have dtype, shape"},
      {"unknown dtype", R"({"t":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}})", 0,
       "dtype: 'F4' is not known"},
      {"unknown key", R"({"t":{"stride":[0]}})", 0, "'stride' is not known"},
      {"dtype is a number", R"({"t":{"dtype":1}})", 0, "dtype: unexpected a number"},
      {"shape is a string", R"({"t":{"shape":"1"}})", 0, "shape: unexpected a string"},
      {"shape is an object", R"({"t":{"shape":{}}})", 0, "shape: unexpected an object"},
      {"negative shape", R"({"t":{"shape":[-1]}})", 0, "shape: unexpected a negative number"},
      {"fractional shape", R"({"t":{"shape":[1.0]}})", 0, "shape: unexpected a fraction"},
      {"shape beyond 64 bits", R"({"t":{"shape":[18446744073709551616]}})", 0, "a fraction"},
      {"number beyond double", R"({"t":{"shape":[1e999]}})", 0, "not JSON"},
      {"one offset", "{\"t\":{" + u8 + R"(,"shape":[0],"data_offsets":[0]}})", 0, "two numbers"},
      {"three offsets", "{\"t\":{" + u8 + R"(,"data_offsets":[0,0,0]}})", 0, "unexpected a number"},
      {"nine axes", rank9, 1, "more than 8 axes"},
      {"name twice",
       "{\"t\":{" + u8 + R"(,"shape":[0],"data_offsets":[0,0]},"t":{)" + u8 +
           R"(,"shape":[0],"data_offsets":[0,0]}})",
       0, "tensor 't': the name is there twice"},
      {"name twice, once escaped",
       "{\"t\":{" + u8 + R"(,"shape":[0],"data_offsets":[0,0]},"\u0074":{}})", 0, "twice"},
      {"field twice", "{\"t\":{" + u8 + "," + u8 + "}}", 0, "dtype is there twice"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
      {"metadata key twice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "'a' is there twice"},
      {"metadata number", R"({"__metadata__":{"a":1}})", 0, "'a' must be a string, not a number"},
      {"metadata nested", R"({"__metadata__":{"a":{}}})", 0, "'a' must be a string, not an object"},
      {"metadata is a list", R"({"__metadata__":[]})", 0, "an array is no tensor"},
  };
}

// Well-formed JSON whose shapes and offsets do not fit each other or the file.
std::vector<Malformed> MisfittingTensors() {
  const std::string u8 = R"("dtype":"U8")";
  return {
      {"product overflows",
       "{\"t\":{" + u8 + R"(,"shape":[4294967296,4294967296,2],"data_offsets":[0,0]}})", 0,
       "size overflows"},
      {"overflow to the right size",
       R"({"t":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
       "size overflows"},
      {"overflow beside a zero",
       "{\"t\":{" + u8 + R"(,"shape":[9223372036854775808,4,0],"data_offsets":[0,0]}})", 0,
       "size overflows"},
      {"shape too small", "{\"t\":{" + u8 + R"(,"shape":[3],"data_offsets":[0,4]}})", 4,
       "its shape takes 3 bytes, its data_offsets 4"},
      {"backwards", "{\"t\":{" + u8 + R"(,"shape":[0],"data_offsets":[4,0]}})", 4,
       "data_offsets 4 to 0"},
      {"beyond the file", "{\"t\":{" + u8 + R"(,"shape":[5],"data_offsets":[0,5]}})", 4,
       "the file has 4 bytes"},
      {"far beyond the file",
       "{\"t\":{" + u8 +
           R"(,"shape":[1],"data_offsets":[18446744073709551615,18446744073709551615]}})",
       4, "the file has 4 bytes"},
      {"overlap",
       "{\"a\":{" + u8 + R"(,"shape":[3],"data_offsets":[0,3]},"b":{)" + u8 +
           R"(,"shape":[2],"data_offsets":[2,4]}})",
       4, "tensor 'b': starts at byte 2 of the data, inside"},
      {"same bytes twice",
       "{\"a\":{" + u8 + R"(,"shape":[4],"data_offsets":[0,4]},"b":{)" + u8 +
           R"(,"shape":[4],"data_offsets":[0,4]}})",
       4, "inside the tensor that ends at 4"},
      {"gap",
       "{\"a\":{" + u8 + R"(,"shape":[1],"data_offsets":[0,1]},"b":{)" + u8 +
           R"(,"shape":[2],"data_offsets":[2,4]}})",
       4, "leaving a gap after 1"},
      {"gap at the start", "{\"t\":{" + u8 + R"(,"shape":[3],"data_offsets":[1,4]}})", 4, "a gap"},
      {"bytes left over", "{\"t\":{" + u8 + R"(,"shape":[3],"data_offsets":[0,3]}})", 4,
       "1 bytes after the last tensor"},
      {"bytes and no tensor", "{}", 1, "1 bytes after"},
  };
}

TEST(SafetensorsFile, RefusesMalformedHeaders) {
  std::vector<Malformed> headers = MalformedHeaders();
  for (Malformed& misfit : MisfittingTensors()) headers.push_back(std::move(misfit));
  for (const Malformed& malformed : headers) {
    const auto bytes = RawSafetensors(malformed.header, malformed.data_bytes);
    const absl::Status status = SafetensorsFile::Parse(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << malformed.name;
    EXPECT_TRUE(Mentions(status, malformed.error)) << malformed.name << ": " << status;
  }
}

TEST(SafetensorsFile, RefusesWrongLengths) {
  for (const uint64_t length :
       {uint64_t{3}, kSafetensorsHeaderBytesMax + 1, UINT64_MAX, UINT64_MAX - 7}) {
    std::vector<std::byte> bytes = RawSafetensors("{}", 0);
    std::memcpy(bytes.data(), &length, 8);
    const absl::Status status = SafetensorsFile::Parse(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(Mentions(status, "header: ")) << status;
  }
  for (size_t size = 0; size < 8; ++size) {
    const std::vector<std::byte> bytes(size);
    EXPECT_TRUE(Mentions(SafetensorsFile::Parse(bytes).status(), "at least 8"));
  }
}

// Every cut of a good file is refused: nothing is read that is not there.
TEST(SafetensorsFile, RefusesEveryTruncation) {
  const auto bytes = RawSafetensors(
      R"({"__metadata__":{"k":"v"},"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  ASSERT_TRUE(SafetensorsFile::Parse(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(size));
    EXPECT_FALSE(SafetensorsFile::Parse(cut).ok()) << size;
  }
}

TEST(SafetensorsFile, ANameInAMessageIsEscapedAndCut) {
  const auto bytes = RawSafetensors("{\"a\\n" + std::string(1000, 'x') + "\":1}", 0);
  const absl::Status status = SafetensorsFile::Parse(bytes).status();
  EXPECT_TRUE(Mentions(status, "'a\\n")) << status;
  EXPECT_LT(status.message().size(), 200u);
}

TEST(SafetensorsFile, OpenReportsAnInvalidPath) {
  const TemporaryDirectory directory;
  EXPECT_EQ(SafetensorsFile::Open(directory / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Mentions(SafetensorsFile::Open(directory / "").status(), "not a regular file"));
  ASSERT_EQ(mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(Mentions(SafetensorsFile::Open(directory / "pipe").status(), "not a regular file"));
  WriteWholeFile(directory / "empty", {});
  const absl::Status empty = SafetensorsFile::Open(directory / "empty").status();
  EXPECT_EQ(empty.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Mentions(empty, directory / "empty")) << empty;
}

TEST(SafetensorsFile, AMissingTensorNamesThoseThereAre) {
  const auto bytes = RawSafetensors(R"({"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0);
  const absl::Status status = SafetensorsFile::Parse(bytes)->Tensor("k").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Mentions(status, "no tensor 'k'; there are 'q'")) << status;
}

// Goal: what is written is read back, whole and aligned. Method: every dtype, names and metadata
// that need escapes, a scalar, an empty tensor; the views must outlive a move of the file object.
TEST(WriteSafetensors, RoundTrip) {
  const TemporaryDirectory directory;
  const std::string path = directory / "file.safetensors";
  std::vector<std::byte> data(240);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
  std::vector<TensorToWrite> tensors;
  for (const TensorDtype dtype :
       {TensorDtype::kBf16, TensorDtype::kF16, TensorDtype::kF32, TensorDtype::kF64,
        TensorDtype::kI8, TensorDtype::kU8, TensorDtype::kI16, TensorDtype::kI32, TensorDtype::kI64,
        TensorDtype::kBool}) {
    const uint64_t bytes = TensorDtypeBytes(dtype);
    tensors.push_back(
        {std::string(TensorDtypeName(dtype)), dtype, {2, 3}, std::span(data).first(6 * bytes)});
  }
  tensors.push_back({"scalar \"\\\n\xe2\x82\xac", TensorDtype::kU8, {}, std::span(data).first(1)});
  tensors.push_back({"empty", TensorDtype::kF32, {0, 7}, {}});
  const Metadata metadata = {{"model", "a\"b"}, {"nothing", ""}, {std::string("n\0l", 3), "\x01"}};
  ASSERT_TRUE(WriteSafetensors(path, metadata, tensors).ok());
  EXPECT_EQ(directory.FileCount(), 1u);

  auto opened = SafetensorsFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const SafetensorsFile file = *std::move(opened);
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const TensorToWrite& written : tensors) {
    const auto read = file.Tensor(written.name);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->dtype, written.dtype);
    EXPECT_EQ(read->shape, written.shape);
    EXPECT_TRUE(
        std::equal(read->data.begin(), read->data.end(), written.data.begin(), written.data.end()));
  }
  const auto first = file.Tensor("BF16");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first->data.data()) % 64, 0u);
}

TEST(WriteSafetensors, AnEmptyFileCanBeRead) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteSafetensors(directory / "f", {}, {}).ok());
  const auto file = SafetensorsFile::Open(directory / "f");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(ReadWholeFile(directory / "f").size() % 64, 0u);
}

TEST(WriteSafetensors, WritesNothingThatTheReaderWouldRefuse) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> data(4);
  const TensorToWrite good = {"t", TensorDtype::kF32, {1}, data};
  TensorToWrite wrong_shape = good, not_utf8 = good, reserved = good, rank = good;
  wrong_shape.shape = {2};
  not_utf8.name = "\xff";
  reserved.name = "__metadata__";
  rank.shape.assign(9, 1);
  const auto refused = [&](const std::vector<TensorToWrite>& tensors, const Metadata& metadata) {
    const absl::Status status = WriteSafetensors(directory / "f", metadata, tensors);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  };
  refused({wrong_shape}, {});
  refused({good, good}, {});
  refused({not_utf8}, {});
  refused({reserved}, {});
  refused({reserved}, {{"a", "b"}});
  refused({rank}, {});
  refused({good}, {{"k", "\xc3"}});
  refused({good}, {{"\xed\xa0\x80", "v"}});
  EXPECT_EQ(directory.FileCount(), 0u);
}

TEST(WriteSafetensors, AFailureLeavesTheOldFileAndNothingElse) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> data(4);
  const std::vector<TensorToWrite> tensors = {{"t", TensorDtype::kF32, {1}, data}};
  EXPECT_EQ(WriteSafetensors(directory / "no/such/file", {}, tensors).code(),
            absl::StatusCode::kUnavailable);
  ASSERT_TRUE(std::filesystem::create_directory(directory / "taken"));
  EXPECT_EQ(WriteSafetensors(directory / "taken", {}, tensors).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(directory.FileCount(), 1u);
}

// What is written in pieces, some of them twice, has the bytes of what is written at once.
TEST(SafetensorsWriter, PiecesMakeTheSameFile) {
  const TemporaryDirectory directory;
  std::vector<std::byte> data(1000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
  const Metadata metadata = {{"k", "v"}};
  const auto part = [&data](size_t begin, size_t size) {
    return std::span<const std::byte>(data).subspan(begin, size);
  };
  const TensorToWrite whole[] = {{"b", TensorDtype::kU8, {600}, part(0, 600)},
                                 {"none", TensorDtype::kI64, {0, 3}, {}},
                                 {"a", TensorDtype::kF32, {100, 1}, part(600, 400)}};
  ASSERT_TRUE(WriteSafetensors(directory / "whole", metadata, whole).ok());
  const TensorSpec specs[] = {{"b", TensorDtype::kU8, {600}},
                              {"none", TensorDtype::kI64, {0, 3}},
                              {"a", TensorDtype::kF32, {100, 1}}};
  {
    auto writer = SafetensorsWriter::Create(directory / "pieces", metadata, specs);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_FALSE(std::filesystem::exists(directory / "pieces"));
    EXPECT_TRUE(writer->Write(2, 0, part(600, 400)).ok());
    EXPECT_TRUE(writer->Write(0, 0, std::vector<std::byte>(500)).ok());  // rows that were wrong
    EXPECT_TRUE(writer->Write(0, 0, part(0, 450)).ok());
    EXPECT_TRUE(writer->Write(0, 450, part(450, 150)).ok());
    ASSERT_TRUE((*std::move(writer)).Finish().ok());
  }
  EXPECT_EQ(ReadWholeFile(directory / "pieces"), ReadWholeFile(directory / "whole"));
  EXPECT_EQ(directory.FileCount(), 2u);
}

TEST(SafetensorsWriter, AnIncompleteFileDoesNotAppear) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> data(16);
  const TensorSpec specs[] = {{"a", TensorDtype::kU8, {16}}, {"b", TensorDtype::kU8, {16}}};
  for (const bool finish : {true, false}) {
    auto writer = SafetensorsWriter::Create(directory / "f", {}, specs);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE(writer->Write(0, 0, data).ok());
    const auto refused = [&](uint64_t offset, size_t size) {
      const absl::Status status = writer->Write(1, offset, std::span(data).first(size));
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << offset << " " << size;
    };
    refused(1, 4);            // a gap
    refused(UINT64_MAX, 16);  // wraps around
    EXPECT_TRUE(writer->Write(1, 0, std::span(data).first(8)).ok());
    refused(8, 9);  // past the end
    if (!finish) continue;
    const absl::Status status = (*std::move(writer)).Finish();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find("'b' has 8 bytes of 16"), std::string::npos);
  }
  EXPECT_EQ(directory.FileCount(), 0u);
  const TensorSpec huge[] = {{"a", TensorDtype::kF64, {UINT64_MAX / 4, 2}}};
  EXPECT_EQ(SafetensorsWriter::Create(directory / "f", {}, huge).status().code(),
            absl::StatusCode::kInvalidArgument);
  const TensorSpec large[] = {{"a", TensorDtype::kU8, {uint64_t{1} << 63}},
                              {"b", TensorDtype::kU8, {uint64_t{1} << 63}}};
  EXPECT_EQ(SafetensorsWriter::Create(directory / "f", {}, large).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckv
