package rules

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The service runs as a user of its own: it reads what systemd hands it as a credential, and nothing below /etc.
func TestServiceReadsCredentialsAlone(t *testing.T) {
	atRoot(t)
	unit, settings := readText(t, "deploy/gradbus.service"), readText(t, "deploy/ps.yaml")
	loaded := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#?LoadCredential=([^:]+):/etc/gradbus/`).FindAllStringSubmatch(unit, -1) {
		loaded[m[1]] = true
	}
	named := regexp.MustCompile(`(?m)^ExecStart=.* --config %d/(\S+)$`).FindStringSubmatch(unit)
	if named == nil || !loaded[named[1]] || !strings.Contains(unit, "\nLoadCredential="+named[1]+":") {
		t.Errorf("the unit reads its settings as %q, and is handed %v", named, loaded)
	}
	files := regexp.MustCompile(`(?m)^#?([a-z-]+): (/\S+)$`).FindAllStringSubmatch(settings, -1)
	if len(files) < 8 {
		t.Fatalf("ps.yaml names the files %q only", files)
	}
	for _, m := range files {
		name, below := strings.CutPrefix(m[2], "/run/credentials/gradbus.service/")
		if !below || !loaded[name] {
			t.Errorf("ps.yaml: %s is %s, which the unit does not hand over: it hands over %v", m[1], m[2], loaded)
		}
	}
}

// What deploy/ calls a secret is no part of an image's build, nor of a commit.
func TestSecretsOfDeployAreIgnored(t *testing.T) {
	atRoot(t)
	var secrets []string
	for _, m := range regexp.MustCompile(`(?m)^    file: \./(\S+)$`).FindAllStringSubmatch(readText(t, "deploy/compose.yaml"), -1) {
		secrets = append(secrets, m[1])
	}
	if len(secrets) == 0 {
		t.Error("compose.yaml has no secret")
	}
	unit := readText(t, "deploy/gradbus.service")
	for _, m := range regexp.MustCompile(`(?m)^#LoadCredential=([^:]+):`).FindAllStringSubmatch(unit, -1) {
		secrets = append(secrets, m[1])
	}
	for _, list := range []string{".dockerignore", ".gitignore"} {
		patterns := strings.Fields(readText(t, list))
		for _, secret := range secrets {
			if !slices.ContainsFunc(patterns, func(pattern string) bool {
				is, _ := path.Match(pattern, "/deploy/"+secret)
				return is
			}) {
				t.Errorf("%s: no pattern for deploy/%s", list, secret)
			}
		}
	}
}
