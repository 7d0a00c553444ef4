// Command generate makes go-ethereum's bindings, of both kinds, from the ABI files of the system contracts.
//
// It is abigen without its command line, which would have to be compiled with half of a node.
package main

import (
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi/abigen"
)

func main() {
	source, target := os.Args[1], os.Args[2]
	files, err := filepath.Glob(filepath.Join(source, "*.json"))
	if err != nil || len(files) == 0 {
		log.Fatal("no *.json in ", source)
	}
	for _, file := range files {
		abi, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		types, abis := []string{strings.ToUpper(name[:1]) + name[1:]}, []string{string(abi)}
		first, err := abigen.Bind(types, abis, []string{""}, []map[string]string{nil}, "contracts", nil, nil)
		if err != nil {
			log.Fatal(err)
		}
		second, err := abigen.BindV2(types, abis, []string{""}, "contractsv2", nil, nil)
		if err != nil {
			log.Fatal(err)
		}
		for kind, code := range map[string]string{"contracts": first, "contractsv2": second} {
			if err := os.MkdirAll(filepath.Join(target, kind), 0o755); err != nil {
				log.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(target, kind, name+".go"), []byte(code), 0o644); err != nil {
				log.Fatal(err)
			}
		}
	}
}
