// Goal: a .npy file is taken as NumPy means it, or refused before anything is sized by it.
// Method: files made by hand of a header and data, each wrong in one thing.

#include "store/formats/npy.h"

#include <gtest/gtest.h>

#include "tests/store/formats/test_files.h"

namespace ckv {
namespace {

std::vector<std::byte> RawNpy(std::string_view header, size_t data_bytes, int major = 1) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(major);
  text += '\0';
  const auto length = static_cast<uint32_t>(header.size());
  text.append(reinterpret_cast<const char*>(&length), major == 1 ? 2 : 4);
  text += header;
  for (size_t i = 0; i < data_bytes; ++i) text += static_cast<char>(i);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// As numpy.save writes it.
std::string Header(std::string_view descr, std::string_view shape,
                   std::string_view fortran = "False") {
  return "{'descr': '" + std::string(descr) + "', 'fortran_order': " + std::string(fortran) +
         ", 'shape': " + std::string(shape) + ", }     \n";
}

TEST(NpyFile, ReadsWhatNumPyWrites) {
  for (const int major : {1, 2, 3}) {
    const auto bytes = RawNpy(Header("<f4", "(2, 3, 4)"), 96, major);
    const auto file = NpyFile::Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->dtype(), (NpyDtype{'f', 4}));
    EXPECT_EQ(file->shape(), (std::vector<uint64_t>{2, 3, 4}));
    EXPECT_EQ(file->ShapeText(), "f4 [2, 3, 4]");
    ASSERT_EQ(file->data().size(), 96u);
    EXPECT_EQ(file->data()[95], std::byte{95});
  }
}

TEST(NpyFile, AcceptsWhatTheFormatAllows) {
  struct Case {
    std::string header;
    size_t data_bytes;
    std::string shape;
  };
  for (const Case& c : std::initializer_list<Case>{
           {Header("|V2", "(3,)"), 6, "V2 [3]"},  // bf16, as ml_dtypes saves it
           {Header("<u2", "()"), 2, "u2 []"},
           {Header("|u1", "(0, 5)"), 0, "u1 [0, 5]"},
           {"{\"shape\": (1,), \"descr\": \"<i4\", \"fortran_order\": False}", 4, "i4 [1]"},
           {"{'descr':'<i8','fortran_order':False,'shape':(1,1)}", 8, "i8 [1, 1]"}}) {
    const auto bytes = RawNpy(c.header, c.data_bytes);
    const auto file = NpyFile::Parse(bytes);
    ASSERT_TRUE(file.ok()) << c.header << ": " << file.status();
    EXPECT_EQ(file->ShapeText(), c.shape);
  }
}

void ExpectRefusal(std::span<const std::byte> bytes, std::string_view what) {
  const absl::Status status = NpyFile::Parse(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_NE(std::string(status.message()).find(what), std::string::npos) << what << ": " << status;
}

TEST(NpyFile, RefusesOtherFiles) {
  struct Case {
    std::string header;
    size_t data_bytes;
    const char* error;
  };
  for (const Case& c : std::initializer_list<Case>{
           {Header("<f4", "(2, 3)", "True"), 24, "Fortran order"},
           {Header(">f4", "(1,)"), 4, "big-endian"},
           {Header("=f4", "(1,)"), 4, "order must be"},
           {Header("<O8", "(1,)"), 8, "of a kind"},
           {Header("<f0", "(1,)"), 0, "1 to 16 bytes"},
           {Header("<f4096", "(1,)"), 4096, "1 to 16 bytes"},
           {Header("<f99999999999", "(1,)"), 0, "like '<f4'"},
           {Header("<f", "(1,)"), 4, "like '<f4'"},
           {Header("<f4x", "(1,)"), 4, "like '<f4'"},
           {Header("<f4", "(2,)"), 7, "takes 8 bytes, and 7 follow"},
           {Header("<f4", "(2,)"), 9, "takes 8 bytes, and 9 follow"},
           {Header("<f4", "(18446744073709551615, 18446744073709551615)"), 0, "overflows"},
           {Header("<f4", "(0, 4611686018427387904)"), 0, "overflows"},
           {Header("<f4", "(18446744073709551616,)"), 0, "not a dict"},
           {Header("<f4", "(-1,)"), 0, "not a dict"},
           {Header("<f4", "(1)"), 4, "not a dict"},
           {Header("<f4", "(1 1)"), 4, "not a dict"},
           {Header("<f4", "(1,,1)"), 4, "not a dict"},
           {Header("<f4", "(1,1,1,1,1,1,1,1,1)"), 4, "not a dict"},
           {Header("<f4", "[1]"), 4, "not a dict"},
           {Header("<f4", "(1,)", "Falsee"), 4, "not a dict"},
           {Header("<f4", "(1,)", "0"), 4, "not a dict"},
           {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4, "not a dict"},
           {"{'descr': '<f4', 'fortran_order': False}", 4, "not a dict"},
           {"{'descr': '<f4', 'descr': '<f4', 'shape': (1,)}", 4, "there twice"},
           {"{'descr': '<f4', 'order': 1}", 4, "'order' is not known"},
           {"{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", 4, "not a dict"},
           {Header("<f4", "(1,)") + "x", 4, "not a dict"},
           {"{'descr': '<f4", 4, "not a dict"},
           {"{'de\\x73cr': '<f4'}", 4, "not a dict"},
           {"", 4, "not a dict"}}) {
    ExpectRefusal(RawNpy(c.header, c.data_bytes), c.error);
  }
  ExpectRefusal(RawNpy(Header("<f4", "(1,)"), 4, /*major=*/4), "version 4.0");
  ExpectRefusal(RawNpy(Header("<f4", "(1,)"), 4, /*major=*/0), "version 0.0");
  ExpectRefusal(RawNpy(std::string(kNpyHeaderBytesMax + 1, ' '), 0, /*major=*/2), "limit 65536");
  ExpectRefusal(std::as_bytes(std::span("PK\3\4 an .npz is a zip")), "not a .npy file");
}

TEST(NpyFile, RefusesEveryTruncation) {
  const auto whole = RawNpy(Header("<u2", "(3,)"), 6);
  ASSERT_TRUE(NpyFile::Parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(NpyFile::Parse(std::span(whole).first(size)).ok()) << size;
  }
}

TEST(NpyFile, OpenReportsAnInvalidPath) {
  const TemporaryDirectory directory;
  EXPECT_EQ(NpyFile::Open(directory / "none").status().code(), absl::StatusCode::kNotFound);
  WriteWholeFile(directory / "short", {});
  const absl::Status status = NpyFile::Open(directory / "short").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find(directory / "short"), std::string::npos) << status;
  WriteWholeFile(directory / "good", RawNpy(Header("<u2", "(40000,)"), 80000));
  const auto file = NpyFile::Open(directory / "good");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::byte last = file->data().back();
  const auto parts = NpyFile::Open(directory / "good", FileReading::kParts);
  ASSERT_TRUE(parts.ok()) << parts.status();
  std::vector<std::byte> copied(80000);
  ASSERT_TRUE(parts->Copy(parts->data(), copied.data()).ok());
  EXPECT_EQ(copied.back(), last);
}

}  // namespace
}  // namespace ckv
