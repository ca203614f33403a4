# What `cmake --install` puts into a prefix: headers under include/ckv, the client as static
# libraries (ckv::client, ckv::client_grpc) and as one shared one (ckv::shared, libckv_cc.so), the C
# ABI (ckv::c, libckv.so), the files by which CMake and pkg-config find them, and the programs. Components: library (libckv.so.1),
# development, ckvd, ckvctl; with programs, each is a package (package.cmake). libggml-ckv.so, if it is built, is the component ggml.
include(CMakePackageConfigHelpers)

set(ckv_archives ckv_base ckv_attention ckv_store ckv_transport ckv_client)
if(CKV_GRPC)
  list(APPEND ckv_archives ckv_messages ckv_proto ckv_client_grpc)
endif()

# The archives' objects, and what they use from elsewhere.
add_library(ckv_shared SHARED)
foreach(name ${ckv_archives})
  target_sources(ckv_shared PRIVATE $<TARGET_OBJECTS:${name}>)
endforeach()
set_target_properties(ckv_shared PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(ckv_shared PRIVATE absl::btree absl::cleanup absl::flat_hash_set absl::hash
                      absl::strings nlohmann_json::nlohmann_json OpenSSL::Crypto PkgConfig::HWY
                      PkgConfig::URING PkgConfig::XXHASH Threads::Threads)
if(CKV_IBVERBS)
  target_link_libraries(ckv_shared PRIVATE ${CKV_IBVERBS})
endif()
# Headers use these, so users of the library link them too.
target_link_libraries(ckv_shared PUBLIC ckv_headers absl::flat_hash_map absl::function_ref absl::status
                      absl::statusor absl::str_format absl::synchronization spdlog::spdlog)
if(CKV_GRPC)
  target_link_libraries(ckv_shared PUBLIC gRPC::grpc++ protobuf::libprotobuf)
endif()
set_target_properties(ckv_shared PROPERTIES OUTPUT_NAME ckv_cc VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} EXPORT_NAME shared)

foreach(name ${ckv_archives} ckv_headers)
  string(REGEX REPLACE "^ckv_" "" short ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${short})
endforeach()

set(cmake_files ${CMAKE_INSTALL_LIBDIR}/cmake/ckv)
install(TARGETS ${ckv_archives} ckv_headers ckv_shared EXPORT ckvTargets
        ARCHIVE COMPONENT development LIBRARY COMPONENT development)
if(TARGET ckv_c)
  # Programs need the file of the ABI's version alone, which has a package of its own (libckv1).
  install(TARGETS ckv_c EXPORT ckvTargets LIBRARY COMPONENT library NAMELINK_COMPONENT development)
  file(GLOB c_headers ${PROJECT_SOURCE_DIR}/client/bindings/c/ckv*.h)
  install(FILES ${c_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ckv COMPONENT development)
endif()
install(EXPORT ckvTargets NAMESPACE ckv:: DESTINATION ${cmake_files} COMPONENT development)
# The headers of these archives. Those of programs and of kernels' insides stay here.
if(NOT CKV_GRPC)
  set(ckv_grpc_headers PATTERN "client/grpc" EXCLUDE PATTERN "proto/convert.h" EXCLUDE)
endif()
foreach(folder proto attention store transport client)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ckv
          COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.inl.h" EXCLUDE
          PATTERN "client/tools/ctl" EXCLUDE PATTERN "client/tools/characterize" EXCLUDE
          PATTERN "client/bindings/c" EXCLUDE PATTERN "client/tools/reference_engine" EXCLUDE PATTERN "client/bindings/ggml" EXCLUDE PATTERN "proto/ckv" EXCLUDE
          ${ckv_grpc_headers})
endforeach()
# llama.cpp's backend, and its functions for programs.
if(TARGET ggml_ckv)
  install(TARGETS ggml_ckv LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ggml)
  install(FILES ${PROJECT_SOURCE_DIR}/client/bindings/ggml/ckv_ggml.h ${PROJECT_SOURCE_DIR}/client/bindings/ggml/ckv_eval.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ckv/client/bindings/ggml COMPONENT ggml)
endif()
if(CKV_GRPC)
  install(DIRECTORY ${CMAKE_BINARY_DIR}/generated/ckv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          COMPONENT development FILES_MATCHING PATTERN "*.pb.h")
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/ckv DESTINATION ${CMAKE_INSTALL_DATADIR}/ckv/proto
          COMPONENT development FILES_MATCHING PATTERN "*.proto")
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ckvConfig.cmake.in
                              ${CMAKE_BINARY_DIR}/install/ckvConfig.cmake
                              INSTALL_DESTINATION ${cmake_files})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/install/ckvConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/install/ckvConfig.cmake
              ${CMAKE_BINARY_DIR}/install/ckvConfigVersion.cmake
        DESTINATION ${cmake_files} COMPONENT development)
if(CKV_GRPC)
  set(CKV_PC_GRPC "grpc++ protobuf")
endif()
# From the file itself, so that an install can be moved.
file(RELATIVE_PATH CKV_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(modules ckv_cc)
if(TARGET ckv_c)
  list(APPEND modules ckv)
endif()
foreach(module ${modules})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${module}.pc.in ${CMAKE_BINARY_DIR}/install/${module}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/install/${module}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT development)
endforeach()
if(CKV_PROGRAMS AND CKV_GRPC)
  install(TARGETS ckvd COMPONENT ckvd)
  install(TARGETS ckvctl COMPONENT ckvctl)
  include(${CMAKE_CURRENT_LIST_DIR}/package.cmake)
endif()
