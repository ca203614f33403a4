// Goal: tensors spread over the files of a folder are one set, and an index that misstates them, or
// leads out of its folder, is refused.
// Method: indices as text, and folders whose files differ from the index in one thing.

#include "store/formats/safetensors_index.h"

#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "store/formats/import.h"
#include "tests/store/formats/test_files.h"

namespace ckv {
namespace {

TEST(SafetensorsIndex, ReadsTensorsAndTheirFiles) {
  const auto index = ParseSafetensorsIndex(
      R"({"metadata": {"total_size": 12, "note": {"by": "x"}},)"
      R"( "weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}})");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->file_of.at("c"), "1.safetensors");
  EXPECT_EQ(index->files.size(), 2u);
  EXPECT_EQ(index->total_bytes, 12u);
  EXPECT_FALSE(ParseSafetensorsIndex(R"({"weight_map": {"a": "x"}})")->total_bytes.has_value());
}

TEST(SafetensorsIndex, RefusesWhatIsNoIndex) {
  const std::string long_name(256, 'n');
  struct Case {
    std::string text;
    const char* error;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"", "not JSON"},
           {"[]", "must be an object"},
           {"{}", "weight_map"},
           {R"({"weight_map": {}})", "weight_map"},
           {R"({"weight_map": ["a"]})", "weight_map"},
           {R"({"weight_map": {"a": 1}})", "plain name"},
           {R"({"weight_map": {"a": ""}})", "plain name"},
           {R"({"weight_map": {"a": "."}})", "plain name"},
           {R"({"weight_map": {"a": ".."}})", "plain name"},
           {R"({"weight_map": {"a": "../x"}})", "plain name"},
           {R"({"weight_map": {"a": "/etc/passwd"}})", "plain name"},
           {R"({"weight_map": {"a": "b/c"}})", "plain name"},
           {R"({"weight_map": {"a": "b\u0000c"}})", "plain name"},
           {R"({"weight_map": {"a": ")" + long_name + R"("}})", "plain name"},
           {R"({"weight_map": {"": "x"}})", "no name of a tensor"},
           {R"({"weight_map": {")" + long_name + R"(": "x"}})", "no name of a tensor"},
           {R"({"weight_map": {"a": "x", "a": "y"}})", "twice"},
           {R"({"weight_map": {"a": "x"}, "other": 1})", "'other' is not known"},
           {R"({"weight_map": {"a": "x"}, "metadata": 1})", "metadata must be"},
           {R"({"weight_map": {"a": "x"}, "metadata": {"total_size": -1}})", "total_size"},
           {R"({"weight_map": {"a": [[[]]]}})", "nested"}}) {
    const absl::Status status = ParseSafetensorsIndex(c.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_NE(std::string(status.message()).find(c.error), std::string::npos) << status;
  }
  std::string many = R"({"weight_map": {"t": "f")";
  for (size_t i = 0; i < kSafetensorsFileCountMax; ++i) {
    many += ",\"t" + std::to_string(i) + "\": \"f" + std::to_string(i) + "\"";
  }
  EXPECT_NE(std::string(ParseSafetensorsIndex(many + "}}").status().message()).find("4097 files"),
            std::string::npos);
}

// Rows of two layers and their tokens, a file each.
struct Folder {
  Folder() {
    data.resize(2 * 3 * 20);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i);
    const std::map<std::string, std::string, std::less<>> about = {
        {"model", "m"},          {"revision", "r"},       {"d_v", "8"},
        {"d_rope", "2"},         {"rope_theta", "10000"}, {"rope_style", "half"},
        {"softmax_scale", ".5"}, {"base_position", "7"}};
    for (auto& metadata : {&files["0"].metadata, &files["1"].metadata}) *metadata = about;
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const std::string name = "layers." + std::to_string(layer) + ".ckv";
      files[std::to_string(layer)].tensors.push_back(
          {name, TensorDtype::kBf16, {3, 10}, std::span(data).subspan(layer * 60, 60)});
      places[name] = std::to_string(layer);
    }
    files["tokens"].tensors.push_back(
        {"token_ids", TensorDtype::kI32, {3}, std::as_bytes(std::span(token_ids))});
    places["token_ids"] = "tokens";
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  absl::StatusOr<RowFile> Open() {
    std::string index;
    for (const auto& [tensor, file] : places) {
      absl::StrAppend(&index, index.empty() ? "" : ",", "\"", tensor, "\":\"", file, "\"");
    }
    index = "{\"weight_map\":{" + index + "}" + more + "}";
    WriteWholeFile(directory / kSafetensorsIndexName, std::as_bytes(std::span(index)));
    for (const auto& [name, file] : files) {
      EXPECT_TRUE(WriteSafetensors(directory / name, file.metadata, file.tensors).ok());
    }
    return RowFile::OpenFolder(directory / "");
  }

  struct File {
    std::map<std::string, std::string, std::less<>> metadata;
    std::vector<TensorToWrite> tensors;
  };
  TemporaryDirectory directory;
  std::vector<std::byte> data;
  std::vector<int32_t> token_ids = {4, 5, 6};
  std::map<std::string, File> files;
  std::map<std::string, std::string> places;  // tensor to file
  std::string more;                           // of the index
};

TEST(RowFile, AFolderOfFilesReadsAsOne) {
  Folder folder;
  folder.more = R"(,"metadata":{"total_size":132})";
  const auto rows = folder.Open();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->geometry().layers, 2u);
  EXPECT_EQ(rows->base_position(), 7u);
  EXPECT_EQ(rows->token_ids()[2], 6);
  const auto read = rows->Rows(1, 1, 3);
  EXPECT_EQ(std::memcmp(read.data(), folder.data.data() + 80, 40), 0);
  std::array<std::byte, 40> copied;
  ASSERT_TRUE(rows->Copy(read, copied.data()).ok());
  EXPECT_EQ(std::memcmp(copied.data(), folder.data.data() + 80, 40), 0);
}

TEST(RowFile, RefusesAFolderThatDiffersFromItsIndex) {
  struct Case {
    const char* error;
    std::function<void(Folder&)> change;
  };
  const Case cases[] = {
      {"/1: tensor 'layers.2.ckv': is missing", [](Folder& f) { f.places["layers.2.ckv"] = "1"; }},
      {"tensor 'layers.1.ckv': is not in the index",
       [](Folder& f) { f.places.erase("layers.1.ckv"), f.places["x"] = "1"; }},
      {"tensor 'layers.0.ckv': is here, and the index places it in '0'",
       [](Folder& f) { f.files["1"].tensors.push_back(f.files["0"].tensors[0]); }},
      {"metadata 'model': 'other' here, 'm' in another file",
       [](Folder& f) { f.files["1"].metadata["model"] = "other"; }},
      {"total_size is 131, the tensors have 132",
       [](Folder& f) { f.more = R"(,"metadata":{"total_size":131})"; }},
      {"metadata 'revision': is missing",
       [](Folder& f) {
         for (const char* file : {"0", "1"}) f.files[file].metadata.erase("revision");
       }},
  };
  for (const Case& c : cases) {
    Folder folder;
    c.change(folder);
    const absl::Status status = folder.Open().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(std::string(status.message()).find(c.error), std::string::npos) << status;
  }
  Folder absent;
  absent.places["layers.2.ckv"] = "2";
  EXPECT_EQ(absent.Open().status().code(), absl::StatusCode::kNotFound);
  const TemporaryDirectory empty;
  EXPECT_EQ(RowFile::OpenFolder(empty / "").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ckv
